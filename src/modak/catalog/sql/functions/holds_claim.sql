-- Whether a granted claim still stands: it is there, and this node hears enough of the others that they cannot have gone on without it.
create or replace function modak.holds_claim(p_table text, p_ticket bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text := modak.lock_node();
begin
    return modak.hear_mesh()
       and exists (select from modak.claims c where c.iceberg_table = p_table and c.ticket = p_ticket and c.node = me and c.granted_at is not null);
end
$$;
