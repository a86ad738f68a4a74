-- Take a peer out of this node's mesh: its subscription, its slot, its claims and answers. What others know of it is not touched, and tables that
-- were attached because it made them stay.
create or replace function modak.forget_peer(peer text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := (select n.node_name from modak.nodes n where n.is_self);
    subscription text := modak.mesh_slot(peer, me);
    slot text := modak.mesh_slot(me, peer);
    reader integer;
begin
    perform modak.drop_subscription(subscription);
    for attempt in 1..50 loop
        select s.active_pid into reader from pg_replication_slots s where s.slot_name = slot;
        exit when not found;
        begin
            if reader is not null then
                perform pg_terminate_backend(reader, 5000);
            end if;
            perform pg_drop_replication_slot(slot);
        exception when object_in_use or undefined_object then
            perform pg_sleep(0.1);
        end;
    end loop;
    perform modak.lock_node();
    delete from modak.nodes n where n.node_name = peer and not n.is_self;
    delete from modak.claims c where c.node = peer;
    delete from modak.claim_acks a where a.node = peer or a.ack_from_node = peer;
    delete from modak.deferred_acks d where d.node = peer;
    delete from modak.shared_tables s where s.node = peer;
    delete from modak.followed_tables f where f.node = peer;
end
$$;
