-- Whether this node hears enough of its mesh, and has looked often enough to know. Where not, the others may go on without it when the whole
-- window is over, so after half of it whoever is at work here loses his turn, and whoever waits has to ask again: answers to what was asked
-- before say nothing any more. Called below the node's lock.
create or replace function modak.hear_mesh() returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A server that stood still for so long was passed over, perhaps, and would not see it by a look at how things are now.
    looked boolean := modak.has_looked();
    heard integer;
    one record;
begin
    if not exists (select from modak.nodes n where not n.is_self) then
        return true;
    end if;
    if not looked then
        -- Nor can it say of anybody that he was silent: what its peers said meanwhile comes now. Each of them has a whole window from here on.
        update modak.nodes n set noticed_at = clock_timestamp() where not n.is_self;
    end if;
    select 1 + count(*) filter (where not l.is_silent) into heard from modak.look_at_peers(0.5) l;
    update modak.nodes n set noticed_at = clock_timestamp() where n.is_self;
    if looked and heard >= modak.mesh_quorum() then
        return true;
    end if;
    for one in delete from modak.claims c using modak.nodes n where n.is_self and c.node = n.node_name and c.granted_at is not null
            returning c.iceberg_table loop
        perform modak.answer_claims(one.iceberg_table);
        perform pg_notify('modak_mesh', md5(one.iceberg_table));
    end loop;
    for one in select c.iceberg_table, c.ticket from modak.claims c join modak.nodes n on n.is_self and n.node_name = c.node loop
        perform modak.ask_again(one.iceberg_table, one.ticket, p_anew => true);
    end loop;
    return false;
end
$$;
