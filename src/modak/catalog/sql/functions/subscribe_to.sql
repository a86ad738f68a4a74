-- Subscribe to a peer; true where that is all. A subscription can be made inside a transaction as long as it makes no slot: the peer made
-- that itself when it joined, or will. A peer that does not answer, or has no catalog yet, is subscribed to without asking it; then its
-- tables are missing here until somebody refreshes the subscription (modak/mesh/joining.py, or another modak.join_mesh).
create or replace function modak.subscribe_to(me text, peer text, dsn text) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set client_min_messages = error
as $$
declare
    subscription text := modak.mesh_slot(peer, me);
    command text := format('create subscription %I connection %L publication modak_mesh', subscription, dsn);
begin
    if modak.is_subscribed(subscription) then
        execute format('alter subscription %I connection %L', subscription, dsn);
        execute format('alter subscription %I enable', subscription);
        return true;
    end if;
    perform modak.drop_subscription(subscription);
    begin
        -- Its commits are flushed at once, as an answer travels back with the flush.
        execute command || ' with (create_slot = false, copy_data = false, synchronous_commit = local)';
    exception when connection_exception or sqlclient_unable_to_establish_sqlconnection or connection_failure or undefined_object then
        execute command || ' with (connect = false, synchronous_commit = local)';
    end;
    return modak.is_subscribed(subscription);
end
$$;
