-- May the writer begin? Says 'granted', or why not: 'behind' an earlier writer of this node, 'waiting' for answers of peers, 'split' where
-- too few nodes are heard, 'lost' where the claim is gone. With p_look it looks for dead writers and silent peers, too.
-- A peer's answer is dispensed with only when enough nodes (modak.mesh_quorum) have not heard it: this one, and those whose answer says so.
create or replace function modak.grant_claim(p_table text, p_ticket bigint, p_look boolean, out state text, out missing text[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := (select n.node_name from modak.nodes n where n.is_self);
    counted integer;
    needed integer;
    heard integer;
begin
    -- Without the lock: earlier tickets of this node were visible before this one was drawn.
    if exists (select from modak.claims c where c.iceberg_table = p_table and c.node = me and c.ticket < p_ticket) then
        state := 'behind';
        if p_look then
            perform modak.lock_node();
            perform modak.reap_claims(p_table);
        end if;
        return;
    end if;
    me := modak.lock_node();
    if p_look or not modak.has_looked() then
        perform modak.hear_mesh();
    end if;
    select c.counts_from into counted from modak.claims c where c.iceberg_table = p_table and c.node = me and c.ticket = p_ticket;
    if not found then
        state := 'lost';
        return;
    end if;
    -- Only answers since everybody was last asked anew: those before may be older than a time in which this node was passed over.
    missing := array(select n.node_name from modak.nodes n
                      where not n.is_self
                        and not exists (select from modak.claim_acks a where a.iceberg_table = p_table and a.ticket = p_ticket and a.node = me
                                                                         and a.ack_from_node = n.node_name and a.asked >= counted));
    state := 'granted';
    if missing <> '{}' then
        state := 'waiting';
        if not p_look then
            return;
        end if;
        needed := modak.mesh_quorum();
        -- Verdicts of different moments prove nothing together: those of others count only fresh.
        with looks as materialized (select l.node_name, l.is_silent from modak.look_at_peers() l),
             verdicts as (select a.silent_nodes from modak.claims c
                            join modak.claim_acks a on a.iceberg_table = c.iceberg_table and a.ticket = c.ticket and a.node = c.node and a.asked = c.asked
                           where c.iceberg_table = p_table and c.ticket = p_ticket and c.node = me
                             and clock_timestamp() - c.asked_at < modak.peer_alive_window() / 4)
        select array_agg(l.node_name order by l.node_name) filter (
                   where l.node_name = any (missing)
                     and not (l.is_silent and 1 + (select count(*) from verdicts v where l.node_name = any (v.silent_nodes)) >= needed)),
               1 + count(*) filter (where not l.is_silent)
          into missing, heard from looks l;
        if missing is null then
            state := 'granted';
        elsif heard < needed then
            state := 'split';
        end if;
    end if;
    if state = 'granted' then
        update modak.claims c set granted_at = clock_timestamp() where c.iceberg_table = p_table and c.node = me and c.ticket = p_ticket;
    end if;
end
$$;
