-- A login for the console's SQL page that may only read: tables and views that stand in this database now, those that whoever calls this makes
-- later, and of the catalog what modak_reader sees. The password comes as a SCRAM verifier, so that no log has it. Says the role's name.
create or replace function modak.make_console_login(verifier text) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Roles are the whole server's; this one is for one database.
    login constant text := 'modak_console_' || (select d.oid from pg_database d where d.datname = current_database());
    one text;
begin
    if to_regrole(login) is null then
        execute format('create role %I', login);
    end if;
    execute format('alter role %I login nosuperuser nocreatedb nocreaterole noreplication nobypassrls password %L', login, verifier);
    if to_regrole('modak_reader') is not null then
        execute format('grant modak_reader to %I', login);
    end if;
    for one in select n.nspname from pg_namespace n
                where n.nspname !~ '^(pg_|modak)' and n.nspname <> 'information_schema' and has_schema_privilege(n.oid, 'usage with grant option') loop
        execute format('grant usage on schema %I to %I', one, login);
        execute format('grant select on all tables in schema %I to %I', one, login);
        execute format('alter default privileges in schema %I grant select on tables to %I', one, login);
    end loop;
    return login;
end
$$;
