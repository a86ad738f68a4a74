-- Remove claims of this node whose session has ended, killed or restarted with the server, and answer those who waited for them.
-- Returns how many. Called below the node's lock.
create or replace function modak.reap_claims(p_table text default null) returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    one record;
    reaped integer := 0;
begin
    -- Claims of this very session would look free to it, as it may take its own lock twice.
    for one in select c.iceberg_table, c.ticket, c.node from modak.claims c join modak.nodes n on n.node_name = c.node and n.is_self
                where (p_table is null or c.iceberg_table = p_table)
                  and not (c.backend_pid = pg_backend_pid()
                           and c.claimed_at >= (select a.backend_start from pg_stat_get_activity(pg_backend_pid()) a))
                order by c.iceberg_table, c.ticket loop
        if pg_try_advisory_xact_lock(modak.claim_lock(one.ticket)) then
            delete from modak.claims c where c.iceberg_table = one.iceberg_table and c.ticket = one.ticket and c.node = one.node;
            perform modak.answer_claims(one.iceberg_table);
            perform pg_notify('modak_mesh', md5(one.iceberg_table));
            reaped := reaped + 1;
        end if;
    end loop;
    return reaped;
end
$$;
