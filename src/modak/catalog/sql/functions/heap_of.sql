-- The heap behind a two-tier view; NULL for any other relation. For everybody: Postgres tells everybody a view's definition, too.
create or replace function modak.heap_of(p_relation regclass) returns regclass
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select t.table_id::oid::regclass
              from modak.tables t
              join pg_namespace n on n.nspname = t.schema_name
              join pg_class c on c.relnamespace = n.oid and c.relname = t.view_name and c.relkind = 'v'
             where c.oid = p_relation);
end
$$;
