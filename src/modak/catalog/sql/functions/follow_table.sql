-- Attach a table that a peer has made, as its gateway told, which has found it in the catalog of this node. By the name that it has there, and for
-- the role of its owner's name, where there is one. What is attached already stays as it is.
create or replace function modak.follow_table(p_node text, p_table_id bigint) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    shared modak.shared_tables;
    known modak.decoupled;
    relation regclass;
begin
    -- Gateways of one database take turns.
    perform pg_advisory_xact_lock(hashtextextended('modak.follow_table', 0));
    select s.* into shared from modak.shared_tables s where s.node = p_node and s.table_id = p_table_id;
    if shared.node is null or exists (select from modak.followed_tables f where f.node = p_node and f.table_id = p_table_id and f.problem is null) then
        return;
    end if;
    if shared.schema_name in ('modak', 'modak_lake') then
        raise exception 'schema "%" is for the catalog alone', shared.schema_name using errcode = 'insufficient_privilege',
            hint = 'Attach the table by another name.';
    end if;
    perform modak.forget_dropped_lake_table(shared.schema_name, shared.table_name, shared.lake_table_ref, shared.storage_profile);
    select d.* into known from modak.decoupled d where d.lake_table_ref = shared.lake_table_ref and d.storage_profile = shared.storage_profile;
    if known.table_id is null then
        relation := modak.attach_iceberg_table(shared.schema_name, shared.table_name, shared.lake_table_ref, shared.storage_profile);
        known := modak.find_lake_table(shared.schema_name, shared.table_name);
        if to_regrole(quote_ident(shared.owner_name)) is not null then
            begin
                execute format('alter foreign table %s owner to %I', relation, shared.owner_name);
            exception when insufficient_privilege then
                raise notice 'table % stays with %: %', relation, current_user, sqlerrm;
            end;
        end if;
    elsif not known.is_attached then
        raise exception 'node "%" has made lake table %, and so has this one: they do not share one catalog', p_node, shared.lake_table_ref
            using errcode = 'object_not_in_prerequisite_state', hint = 'All nodes of a mesh must share one Iceberg catalog: see docs/guides/mesh.md.';
    else
        known.table_id := null;
    end if;
    insert into modak.followed_tables as f (node, table_id, own_table_id) values (p_node, p_table_id, known.table_id)
    on conflict (node, table_id) do update set own_table_id = excluded.own_table_id, problem = null, hint = null, tried_at = now();
end
$$;
