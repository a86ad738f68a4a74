-- Where the statement that runs now notes the rows it missed: statements nest, and each has a place of its own.
create or replace function modak.missed_setting(p_table_id bigint) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select format('modak.missed_%s_%s', p_table_id, length(stack) - length(replace(stack, ' ', '')))
      from current_setting('modak.seen_' || p_table_id, true) stack
$$;
