-- The bakery: writers of one Iceberg table, on any node of a mesh, one after the other. Claims and acks travel between the nodes by
-- logical replication; each node publishes its own rows only, so nothing goes in circles.

create table modak.nodes (
    node_name  text collate "C" primary key check (node_name <> ''),
    is_self    boolean not null default false,
    clock      bigint not null default 0,
    reply_time timestamptz,
    noticed_at timestamptz,
    joined_at  timestamptz not null default now()
);
comment on table modak.nodes is 'This node and its peers, as modak.join_mesh was told. Holds no address: Postgres keeps those with its subscriptions.';
comment on column modak.nodes.clock is 'This node''s Lamport clock: the highest ticket it gave or heard of. Its row is the lock under which claims are made, answered, granted and released.';
comment on column modak.nodes.reply_time is 'A peer''s last sign of life that this node noticed (pg_stat_replication, by the peer''s clock).';
comment on column modak.nodes.noticed_at is 'When that changed, by this node''s clock: two clocks are never compared. Of this node itself: when it last looked.';
create unique index one_self on modak.nodes (is_self) where is_self;
-- A node that never joined a mesh is a mesh of one.
insert into modak.nodes (node_name, is_self) values ('local', true);

create table modak.claims (
    iceberg_table text not null,
    ticket        bigint not null,
    node          text collate "C" not null,
    backend_pid   integer not null default pg_backend_pid(),
    asked         integer not null default 0,
    asked_at      timestamptz not null default clock_timestamp(),
    claimed_at    timestamptz not null default clock_timestamp(),
    granted_at    timestamptz,
    constraint claims_key primary key (iceberg_table, ticket, node)
);
comment on table modak.claims is 'Writers of Iceberg tables, waiting or at work, of every node. The order is (ticket, node).';
comment on column modak.claims.ticket is 'The node''s clock when the claim was made. The session that made it holds an advisory lock of this number, so a dead writer is known.';
comment on column modak.claims.asked is 'How often the claim was sent again because an answer was missing.';
comment on column modak.claims.granted_at is 'Since when the writer is at work. Known on its own node only.';

create table modak.claim_acks (
    iceberg_table text not null,
    ticket        bigint not null,
    node          text collate "C" not null,
    ack_from_node text collate "C" not null,
    clock         bigint not null,
    asked         integer not null default 0,
    silent_nodes  text[] not null default '{}',
    acked_at      timestamptz not null default clock_timestamp(),
    constraint claim_acks_key primary key (iceberg_table, ticket, node, ack_from_node)
);
comment on table modak.claim_acks is 'Consent of a node to a claim of another: it has nobody at work on the table, and nobody waiting with an earlier ticket.';
comment on column modak.claim_acks.node is 'Whose claim it is.';
comment on column modak.claim_acks.clock is 'The consenting node''s clock.';
comment on column modak.claim_acks.asked is 'Which sending of the claim it answers.';
comment on column modak.claim_acks.silent_nodes is 'Nodes that the consenting node has not heard for modak.peer_alive_window_ms, where it was asked again.';

create table modak.deferred_acks (
    iceberg_table text not null,
    ticket        bigint not null,
    node          text collate "C" not null,
    asked         integer not null default 0,
    deferred_at   timestamptz not null default clock_timestamp(),
    constraint deferred_acks_key primary key (iceberg_table, ticket, node)
);
comment on table modak.deferred_acks is 'Claims of other nodes that this node answers when its own, earlier ones are released. Never replicated.';

-- There from the beginning, so that a peer can subscribe before this node has joined. Updates are nobody else's business.
create publication modak_mesh for table modak.claims where (node = 'local'), modak.claim_acks where (ack_from_node = 'local')
    with (publish = 'insert, delete');
