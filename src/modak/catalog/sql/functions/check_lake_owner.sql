-- Refuse to write to the lake from a database that was restored or copied, until `modak reconcile` has said whose the lake is. The first that
-- writes claims it. As the catalog's owner, because whoever writes a row asks this; it tells nothing but yes or no.
create or replace function modak.check_lake_owner() returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    known modak.ownership;
    server text := '';
    place oid := (select d.oid from pg_database d where d.datname = current_database());
begin
    -- Some managed servers do not tell; the number of the database has to do there.
    if has_function_privilege('pg_catalog.pg_control_system()', 'execute') then
        server := (select c.system_identifier::text from pg_control_system() c);
    end if;
    select o.* into known from modak.ownership o;
    if not found then
        insert into modak.ownership (claim, system_id, database_id, database_name)
        values (replace(gen_random_uuid()::text, '-', ''), server, place::bigint, current_database()) on conflict (singleton) do nothing;
    elsif known.claim is null or (known.system_id, known.database_id) is distinct from (server, place::bigint) then
        raise exception 'this database was restored or copied, and the lake may be another one''s'
            using errcode = 'object_not_in_prerequisite_state', hint = '`modak reconcile` says what to do (docs/guides/backup.md).';
    end if;
end
$$;
