-- Draw a ticket for an Iceberg table. Alone on a node without peers the claim is granted at once; else modak.grant_claim is asked until it is.
create or replace function modak.claim_table(p_table text, out ticket bigint, out node text, out is_granted boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform modak.lock_node();
    if not modak.has_looked() then
        perform modak.hear_mesh();
    end if;
    update modak.nodes n set clock = n.clock + 1 where n.is_self returning n.clock, n.node_name into ticket, node;
    perform modak.reap_claims(p_table);
    -- Held by the session, and taken before anybody can see the claim: who sees one without its lock sees a dead writer's.
    perform pg_advisory_lock(modak.claim_lock(ticket));
    is_granted := not exists (select from modak.nodes n where not n.is_self)
                  and not exists (select from modak.claims c where c.iceberg_table = p_table and c.node = claim_table.node);
    insert into modak.claims (iceberg_table, ticket, node, granted_at)
    values (p_table, claim_table.ticket, claim_table.node, case when is_granted then clock_timestamp() end);
end
$$;
