-- The row of a decoupled table by its foreign table, if the caller may act as who owns that; NULL for any other relation, and for none.
create or replace function modak.find_lake_table(p_schema text, p_table text) returns modak.decoupled
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select d
      from pg_foreign_table f
      join pg_foreign_server s on s.oid = f.ftserver and s.srvname = 'modak_gateway'
      join pg_class c on c.oid = f.ftrelid and c.relname = p_table and pg_has_role(c.relowner, 'usage')
      join pg_namespace n on n.oid = c.relnamespace and n.nspname = p_schema
      join modak.decoupled d on f.ftoptions @> array['schema_name=iceberg', concat('table_name=', d.table_id)]
$$;
