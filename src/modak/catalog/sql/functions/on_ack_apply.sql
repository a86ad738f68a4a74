-- An answer of another node arrives: the clock hears of it, and the writer who waits is woken.
create or replace function modak.on_ack_apply() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := (select n.node_name from modak.nodes n where n.is_self);
begin
    -- Every node is sent every answer; those to others are only shown.
    if new.node = me and new.ack_from_node <> me then
        perform modak.settle_applying();
        perform modak.lock_node(new.clock);
        perform pg_notify('modak_mesh', md5(new.iceberg_table));
    end if;
    return null;
end
$$;

drop trigger if exists on_ack_apply on modak.claim_acks;
create trigger on_ack_apply after insert on modak.claim_acks for each row execute function modak.on_ack_apply();
alter table modak.claim_acks enable replica trigger on_ack_apply;
