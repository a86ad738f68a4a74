-- The advisory lock that the session of a claim holds as long as it lives. Tickets are unique on their node.
create or replace function modak.claim_lock(ticket bigint) returns bigint
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select (28008::bigint << 48) | ticket
$$;
