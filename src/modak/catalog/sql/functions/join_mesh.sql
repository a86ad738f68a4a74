-- Make this database a node of a mesh whose other nodes are the peers: {"name": "dsn", …}, or [{"name": …, "dsn": …}, …]. To be called on
-- every node, in any order and as often as one likes; the last call's peers are the peers. Its own name among them is passed over, so that
-- every node may be told the same. Addresses are kept by Postgres with the subscriptions, for superusers' eyes only.
create or replace function modak.join_mesh(node_name text, peers jsonb)
returns table (peer text, is_connected boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted jsonb;
    me text;
    one record;
begin
    if pg_is_in_recovery() then
        raise exception 'a standby cannot join a mesh' using errcode = '25006', hint = 'Join its primary.';
    end if;
    if current_setting('wal_level') <> 'logical' then
        raise exception 'this server does not keep what logical replication needs: wal_level is %', current_setting('wal_level')
            using errcode = '55000', hint = 'Set wal_level to logical, restart the server and join again.';
    end if;
    if pg_current_xact_id_if_assigned() is not null then
        raise exception 'modak.join_mesh cannot run in a transaction that has written' using errcode = '25001',
            hint = 'Call it in a transaction of its own: Postgres makes replication slots in no other.';
    end if;
    wanted := case jsonb_typeof(peers)
        when 'object' then peers
        when 'array' then (select coalesce(jsonb_object_agg(coalesce(p ->> 'name', p ->> 'node', p ->> 'node_name', ''), coalesce(p -> 'dsn', 'null')), '{}')
                             from jsonb_array_elements(peers) p)
        end;
    if wanted is null or coalesce(join_mesh.node_name, '') = '' or exists (select from jsonb_each(wanted) w where jsonb_typeof(w.value) <> 'string' or w.key = '') then
        raise exception 'modak.join_mesh takes a name and peers with a name and a DSN each' using errcode = '22023',
            hint = $hint$For example modak.join_mesh('berlin', '{"paris": "host=… dbname=… user=…"}').$hint$;
    end if;
    wanted := wanted - join_mesh.node_name;
    perform pg_advisory_xact_lock(modak.claim_lock(0));
    select n.node_name into me from modak.nodes n where n.is_self;
    if me <> join_mesh.node_name and exists (select from modak.nodes n where not n.is_self) then
        raise exception 'this node is "%" in a mesh already', me using errcode = '55000', hint = 'Call modak.leave_mesh() first.';
    end if;
    -- Slots first, before anything is written. A peer that is slow to come finds all that was said since.
    for one in select modak.mesh_slot(join_mesh.node_name, w.key) as slot from jsonb_each(wanted) w loop
        if exists (select from pg_replication_slots s where s.slot_name = one.slot and s.wal_status = 'lost') then
            perform pg_drop_replication_slot(one.slot);
        end if;
        if not exists (select from pg_replication_slots s where s.slot_name = one.slot) then
            perform pg_create_logical_replication_slot(one.slot, 'pgoutput');
        end if;
    end loop;
    if current_setting('wal_receiver_status_interval')::interval not between interval '1 ms' and interval '2 s' then
        raise warning 'wal_receiver_status_interval is %: peers may take this node for dead', current_setting('wal_receiver_status_interval')
            using hint = 'Set it to 1s; modak.peer_alive_window_ms, 5000 by default, must be well above it.';
    end if;
    -- Before the node's lock: a peer that does not answer may take minutes not to, and claims go on meanwhile.
    for peer, is_connected in select w.key, modak.subscribe_to(join_mesh.node_name, w.key, w.value #>> '{}') from jsonb_each(wanted) w loop
        return next;
    end loop;
    for one in select n.node_name as name from modak.nodes n where not n.is_self and not wanted ? n.node_name loop
        perform modak.forget_peer(one.name);
    end loop;
    perform modak.lock_node();
    if me <> join_mesh.node_name then
        perform modak.reap_claims();
        if exists (select from modak.claims c where c.node = me) then
            raise exception 'writers are at work under the name "%"', me using errcode = '55006', hint = 'Try again when they are done.';
        end if;
        update modak.nodes n set node_name = join_mesh.node_name, joined_at = now() where n.is_self;
    end if;
    perform modak.publish_claims(join_mesh.node_name);
    insert into modak.nodes (node_name) select w.key from jsonb_each(wanted) w on conflict do nothing;
    -- After the slots: who comes new hears of all that this node has.
    perform modak.share_tables();
end
$$;
