-- Be a mesh of one again. The peers wait for this node's answers until they join anew without it, or find it silent.
create or replace function modak.leave_mesh() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    one text;
begin
    perform pg_advisory_xact_lock(modak.claim_lock(0));
    for one in select n.node_name from modak.nodes n where not n.is_self loop
        perform modak.forget_peer(one);
    end loop;
    perform modak.lock_node();
    perform modak.reap_claims();
    perform modak.share_tables();
end
$$;
