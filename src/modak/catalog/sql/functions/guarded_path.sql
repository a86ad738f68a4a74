-- Of a search path the schemas in which the caller cannot put anything, and temporary ones last: what triggers find there is not his.
create or replace function modak.guarded_path(schemas name[]) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(quote_ident(s.name), ', ' order by s.place)
      from unnest(schemas || 'pg_temp'::name) with ordinality s(name, place)
      left join pg_namespace n on n.nspname = s.name
      join pg_roles r on r.rolname = case current_setting('role') when 'none' then session_user else current_setting('role')::name end
     where s.name = 'pg_temp' or not has_schema_privilege(r.oid, n.oid, 'create')
$$;
