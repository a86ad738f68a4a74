-- TRUNCATE fires no row trigger, so neither a copy under way nor the delta would learn of it.
create or replace function modak.refuse_truncate() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    registered text;
begin
    select format('%I.%I', t.schema_name, t.table_name) into registered
      from modak.tables t where t.table_id = pg_partition_root(tg_relid)::oid::bigint;
    raise exception 'TRUNCATE of table "%" would lose track of rows that are in the lake or on their way there',
        coalesce(registered, format('%I.%I', tg_table_schema, tg_table_name))
        using errcode = '55000',
              hint = 'Use DELETE. To empty the table for good: modak unregister --drop-lake, TRUNCATE, and register it again.';
end
$$;
