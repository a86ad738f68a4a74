-- TRUNCATE fires no row trigger, so neither a copy under way nor the delta would learn of it.
create or replace function modak.refuse_truncate() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'TRUNCATE of "%.%" would lose track of rows that are in the lake or on their way there', tg_table_schema, tg_table_name
        using errcode = '55000',
              hint = 'Use DELETE, or drop the whole table with "modak unregister --drop-lake" first.';
end
$$;
