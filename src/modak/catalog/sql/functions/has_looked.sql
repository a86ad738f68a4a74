-- Whether modak.hear_mesh was asked lately, or nobody has to be heard.
create or replace function modak.has_looked() returns boolean
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select not exists (select from modak.nodes n where not n.is_self)
        or coalesce((select clock_timestamp() - n.noticed_at < 0.75 * modak.peer_alive_window() from modak.nodes n where n.is_self), false)
$$;
