-- Send a claim once more: to peers that joined or came back since, and to learn whom those that answered have not heard.
create or replace function modak.ask_again(p_table text, p_ticket bigint) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := modak.lock_node();
begin
    with taken as (delete from modak.claims c where c.iceberg_table = p_table and c.ticket = p_ticket and c.node = me and c.granted_at is null
                   returning c.*)
    insert into modak.claims (iceberg_table, ticket, node, backend_pid, asked, claimed_at)
    select t.iceberg_table, t.ticket, t.node, t.backend_pid, t.asked + 1, t.claimed_at from taken t;
end
$$;
