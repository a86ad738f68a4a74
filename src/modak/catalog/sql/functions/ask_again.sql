-- Send a claim once more: to peers that joined or came back since, and to learn whom those that answered have not heard. Their earlier answers
-- still count, so one that takes longer than the time between two sendings is not lost; p_anew: those do not, and everybody is asked anew.
drop function if exists modak.ask_again(text, bigint);
create or replace function modak.ask_again(p_table text, p_ticket bigint, p_anew boolean default false) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := modak.lock_node();
begin
    with taken as (delete from modak.claims c where c.iceberg_table = p_table and c.ticket = p_ticket and c.node = me and c.granted_at is null
                   returning c.*)
    insert into modak.claims (iceberg_table, ticket, node, backend_pid, asked, counts_from, claimed_at)
    select t.iceberg_table, t.ticket, t.node, t.backend_pid, t.asked + 1, case when p_anew then t.asked + 1 else t.counts_from end, t.claimed_at
      from taken t;
end
$$;
