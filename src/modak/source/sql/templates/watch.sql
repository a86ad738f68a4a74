-- A writer is about to wait for somebody, or may have to: somebody else holds the row, or it is a cold one. Rows that he deletes meanwhile will be gone
-- from every later query, and nothing tells a deletion from a move to another partition then. So two cursors are opened before the wait,
-- whose snapshots keep these rows: at the end of the statement modak.missed_… names the rows it did not find, and modak.ask_missed locks them
-- through one of them. Postgres passes over a deleted row there and refuses a moved one (40001), as it does for whoever waited for it.
-- The second cursor is the younger one: what it still shows, the first one has looked at.
create or replace function modak.{function}(holder xid) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $body$
declare
    place text := modak.missed_setting({table_id});
    watched text := coalesce(current_setting({watched}, true), '');
    locking refcursor := place || '_lock';
    looking refcursor := place || '_look';
begin
    if strpos(watched, place || ' ') > 0 or not modak.is_running(holder) then
        return true;
    end if;
    open locking no scroll for
        select h.ctid from {heap} h
         where h.ctid = any (nullif(current_setting({versions}, true), '')::tid[])
           and concat(h.tableoid, h.ctid) = any (nullif(current_setting({asked}, true), '')::text[])
           for update of h;
    open looking no scroll for
        select count(*) from {heap} h
         where h.ctid = any (nullif(current_setting({versions}, true), '')::tid[])
           and concat(h.tableoid, h.ctid) = any (nullif(current_setting({asked}, true), '')::text[]);
    perform set_config({watched}, concat(watched, place, ' '), true);
    return true;
end
$body$;
