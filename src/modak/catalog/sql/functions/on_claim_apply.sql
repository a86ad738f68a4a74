-- A claim of another node arrives or goes; fired by the replication worker only.
create or replace function modak.on_claim_apply() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text;
    claim modak.claims := case when tg_op = 'DELETE' then old else new end;
begin
    perform modak.settle_applying();
    me := modak.lock_node(claim.ticket);
    -- Dead writers of this node are reaped in here, too: rows of its own are no news.
    if claim.node = me then
        return null;
    end if;
    delete from modak.claim_acks a where a.iceberg_table = claim.iceberg_table and a.ticket = claim.ticket and a.node = claim.node and a.ack_from_node = me;
    delete from modak.deferred_acks d where d.iceberg_table = claim.iceberg_table and d.ticket = claim.ticket and d.node = claim.node;
    if tg_op = 'INSERT' then
        insert into modak.deferred_acks (iceberg_table, ticket, node, asked) values (claim.iceberg_table, claim.ticket, claim.node, claim.asked);
        perform modak.reap_claims(claim.iceberg_table);
        perform modak.answer_claims(claim.iceberg_table);
    end if;
    return null;
end
$$;

drop trigger if exists on_claim_apply on modak.claims;
create trigger on_claim_apply after insert or delete on modak.claims for each row execute function modak.on_claim_apply();
alter table modak.claims enable replica trigger on_claim_apply;
