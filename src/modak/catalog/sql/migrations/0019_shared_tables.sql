-- Decoupled tables of a mesh: a node tells its peers what it has made, and their gateways attach it.

alter table modak.decoupled add column lake_table_uuid text;
comment on column modak.decoupled.lake_table_uuid is 'The Iceberg table that was attached, whatever has its name later. NULL for one that was made here.';

create table modak.shared_tables (
    node            text collate "C" not null,
    table_id        bigint not null,
    schema_name     text not null,
    table_name      text not null,
    owner_name      text not null,
    lake_table_ref  text not null,
    storage_profile text not null,
    shared_at       timestamptz not null default clock_timestamp(),
    constraint shared_tables_key primary key (node, table_id)
);
comment on table modak.shared_tables is 'Decoupled tables that nodes of the mesh have made. Each node publishes its own rows.';
comment on column modak.shared_tables.node is 'Who made it.';
comment on column modak.shared_tables.table_id is 'Its number there; see modak.decoupled.';
comment on column modak.shared_tables.storage_profile is 'By its name, which must mean the same catalog on all nodes.';

create table modak.followed_tables (
    node         text collate "C" not null,
    table_id     bigint not null,
    own_table_id bigint,
    problem      text,
    hint         text,
    first_seen   timestamptz not null default now(),
    tried_at     timestamptz not null default now(),
    constraint followed_tables_key primary key (node, table_id)
);
comment on table modak.followed_tables is 'What became here of tables that peers have made. Never replicated.';
comment on column modak.followed_tables.own_table_id is 'The table that was attached for it, in modak.decoupled. NULL: none was, or it was there already.';
comment on column modak.followed_tables.problem is 'Why it could not be attached, or dropped when its lake table was. It is tried again.';

-- As what this node is called by now, if it is in a mesh already. Peers take notice when their gateways refresh their subscriptions.
do $$
begin
    if exists (select from pg_publication p where p.pubname = 'modak_mesh') then
        execute format('alter publication modak_mesh add table modak.shared_tables where (node = %L)', (select n.node_name from modak.nodes n where n.is_self));
    end if;
end
$$;

-- What only the catalog's own views say to the gateway. Whoever owns a foreign table of its server can have it ask for anything there, and
-- must not give orders, nor ask in another's name.

alter foreign table modak.gateway_order add column token text options (column_name 'token');
alter foreign table modak.gateway_query add column token text options (column_name 'token');
