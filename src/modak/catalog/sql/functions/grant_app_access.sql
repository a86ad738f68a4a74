-- What an application needs besides its grants on the registered tables themselves: to name what stands in this schema, modak.query for
-- one. Reading and writing through a view asks for nothing here, and no table of the catalog is opened.
-- It takes a text, which is what Postgres reads a quoted name as first: of two functions of this name a call means this one.
drop function if exists modak.grant_app_access(name);
create or replace function modak.grant_app_access(role text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform modak.check_makers();
    execute format('grant usage on schema modak to %I', role);
end
$$;
