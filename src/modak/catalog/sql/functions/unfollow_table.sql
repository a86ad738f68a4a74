-- Let go of a table that was attached because a peer had made it: that peer has dropped it, and the catalog does not have it any more. One that
-- something here depends on stays, and the error says what.
create or replace function modak.unfollow_table(p_node text, p_table_id bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    one record;
begin
    perform pg_advisory_xact_lock(hashtextextended('modak.follow_table', 0));
    for one in
        select n.nspname, c.relname
          from modak.followed_tables f
          join modak.decoupled d on d.table_id = f.own_table_id
          join pg_foreign_table t on t.ftoptions @> array['schema_name=iceberg', concat('table_name=', d.table_id)]
          join pg_foreign_server s on s.oid = t.ftserver and s.srvname = 'modak_gateway'
          join pg_class c on c.oid = t.ftrelid
          join pg_namespace n on n.oid = c.relnamespace
         where f.node = p_node and f.table_id = p_table_id loop
        perform modak.drop_iceberg_table(one.nspname, one.relname);
    end loop;
    delete from modak.followed_tables f where f.node = p_node and f.table_id = p_table_id;
end
$$;
