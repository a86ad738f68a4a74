-- For how long a peer may say nothing: modak.peer_alive_window_ms, 5 seconds unless the database or the session says otherwise.
create or replace function modak.peer_alive_window() returns interval
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select make_interval(secs => coalesce(nullif(current_setting('modak.peer_alive_window_ms', true), ''), '5000')::double precision / 1000)
$$;
