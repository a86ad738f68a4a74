-- Consent to every deferred claim that nothing of this node stands before: nobody at work, nobody waiting with an earlier ticket.
-- Called below the node's lock, by whoever defers and by whoever releases: both do the same thing here, so neither can miss the other.
create or replace function modak.answer_claims(p_table text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text;
    heard bigint;
    silent text[];
    due record;
begin
    select n.node_name, n.clock into me, heard from modak.nodes n where n.is_self;
    for due in delete from modak.deferred_acks d
                where d.iceberg_table = p_table
                  and not exists (select from modak.claims c
                                   where c.iceberg_table = p_table and c.node = me
                                     and (c.granted_at is not null or (c.ticket, c.node) < (d.ticket, d.node)))
            returning d.ticket, d.node, d.asked loop
        if due.asked > 0 and silent is null then
            select coalesce(array_agg(l.node_name), '{}') into silent from modak.look_at_peers() l where l.is_silent;
        end if;
        insert into modak.claim_acks (iceberg_table, ticket, node, ack_from_node, clock, asked, silent_nodes)
        values (p_table, due.ticket, due.node, me, heard, due.asked, case when due.asked > 0 then silent else '{}' end)
        on conflict on constraint claim_acks_key do nothing;
    end loop;
end
$$;
