-- What a node does once a second, also where nobody writes: see who is there, take turns back where too few are, and clear away claims that dead writers left.
-- Returns the subscriptions that still wait for their peer.
create or replace function modak.tend_node() returns setof text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := (select n.node_name from modak.nodes n where n.is_self);
begin
    if exists (select from modak.nodes n where not n.is_self) or exists (select from modak.claims c where c.node = me) then
        perform modak.lock_node();
        perform modak.hear_mesh();
        perform modak.reap_claims();
    end if;
    return query select modak.mesh_slot(n.node_name, me) from modak.nodes n
                  where not n.is_self and not modak.is_subscribed(modak.mesh_slot(n.node_name, me));
end
$$;
