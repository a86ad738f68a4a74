-- Give a claim back, granted or not, and answer those who waited for it. False where it was gone already.
create or replace function modak.release_claim(p_table text, p_ticket bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := modak.lock_node();
    was_there boolean;
begin
    delete from modak.claims c where c.iceberg_table = p_table and c.ticket = p_ticket and c.node = me;
    was_there := found;
    if exists (select from modak.deferred_acks d where d.iceberg_table = p_table)
       or exists (select from modak.claims c where c.iceberg_table = p_table and c.node = me) then
        perform modak.answer_claims(p_table);
        perform pg_notify('modak_mesh', md5(p_table));
    end if;
    perform pg_advisory_unlock(modak.claim_lock(p_ticket));
    return was_there;
end
$$;
