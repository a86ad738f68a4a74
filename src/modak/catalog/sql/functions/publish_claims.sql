-- Each node publishes its own rows only, of claims, answers and tables: what it was sent is never sent on.
create or replace function modak.publish_claims(node_name text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_publication p where p.pubname = 'modak_mesh') then
        create publication modak_mesh with (publish = 'insert, delete');
    end if;
    execute format('alter publication modak_mesh set table modak.claims where (node = %1$L), modak.claim_acks where (ack_from_node = %1$L), '
                   'modak.shared_tables where (node = %1$L)', node_name);
end
$$;
