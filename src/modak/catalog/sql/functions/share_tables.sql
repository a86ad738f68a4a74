-- Tell the peers of a decoupled table that this node has made, or anew of all of them. Alone there is nobody to tell.
create or replace function modak.share_tables(p_table_id bigint default null) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_table_id is null then
        -- Also what it told under another name.
        delete from modak.shared_tables s where not exists (select from modak.nodes n where n.node_name = s.node and not n.is_self);
    end if;
    insert into modak.shared_tables (node, table_id, schema_name, table_name, owner_name, lake_table_ref, storage_profile)
    select me.node_name, d.table_id, n.nspname, c.relname, pg_get_userbyid(c.relowner), d.lake_table_ref, d.storage_profile
      from modak.nodes me
      join modak.decoupled d on not d.is_attached and (p_table_id is null or d.table_id = p_table_id)
      join pg_foreign_table f on f.ftoptions @> array['schema_name=iceberg', concat('table_name=', d.table_id)]
      join pg_foreign_server s on s.oid = f.ftserver and s.srvname = 'modak_gateway'
      join pg_class c on c.oid = f.ftrelid
      join pg_namespace n on n.oid = c.relnamespace
     where me.is_self and exists (select from modak.nodes p where not p.is_self)
    on conflict do nothing;
end
$$;
