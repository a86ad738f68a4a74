-- The program version that last migrated this database. In public, so that it is found without a schema name.
create or replace function public.modak_version() returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select program from modak.schema_meta $$;
