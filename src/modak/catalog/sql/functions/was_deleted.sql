-- Whether a version of a heap row that is gone was deleted, and not changed or moved; false where nobody can tell any more.
-- Of a row that was changed in its partition there is a newer version. One that was moved to another partition leaves no trace, but whoever
-- waits for it is told by Postgres (40001): so a deletion is certain where the writer met this version, found it gone and was told nothing.
create or replace function modak.was_deleted(place oid, version tid, met text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return met is not distinct from concat(place, version) and has_table_privilege(place, 'select')
       and currtid2(place::regclass::text, version) = version;
end
$$;
