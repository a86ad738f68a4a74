-- Decoupled tables: their rows are in the lake only, and Postgres knows them as foreign tables of the gateway.

create table modak.decoupled (
    table_id        bigint primary key,
    schema_name     text not null,
    table_name      text not null,
    lake_table_ref  text not null,
    storage_profile text not null references modak.storage_profiles on update cascade,
    columns         jsonb not null,
    partition_by    text[] not null default '{}',
    is_attached     boolean not null default false,
    created_at      timestamptz not null default now(),
    constraint decoupled_lake_table_once unique (storage_profile, lake_table_ref),
    constraint decoupled_name_once unique (schema_name, table_name),
    constraint decoupled_columns_are_array check (jsonb_typeof(columns) = 'array')
);
comment on table modak.decoupled is 'Tables whose rows are in the lake only: a foreign table here, an Iceberg table there, and nothing in between.';
comment on column modak.decoupled.table_id is 'What the foreign table''s option table_name says: its OID when it was made. A restore keeps the option, not the OID.';
comment on column modak.decoupled.lake_table_ref is 'namespace.table in the profile''s Iceberg catalog.';
comment on column modak.decoupled.columns is 'In order: name, type, base, modifier, field_id, required, comment, default; lake where the Iceberg type is not the usual one.';
comment on column modak.decoupled.partition_by is 'The Iceberg partition spec, as in bucket(16, id) or day(at).';
comment on column modak.decoupled.is_attached is 'The Iceberg table was there before; a drop without purge leaves it in its catalog.';

create table modak.lake_commits (
    commit_id  text primary key,
    xid        text not null,
    node       text not null default '',
    changes    jsonb not null,
    created_at timestamptz not null default now()
);
comment on table modak.lake_commits is 'What transactions are about to do in the lake, written before they do it. What became of the transaction settles it.';
comment on column modak.lake_commits.commit_id is 'The stamp modak.commit-id in the summaries of the snapshots.';
comment on column modak.lake_commits.xid is 'The Postgres transaction, an xid8 as text: pg_xact_status tells what became of it.';
comment on column modak.lake_commits.changes is 'One entry per lake table: profile, ref, kind (change, create, drop), snapshot_id.';

-- What the functions for decoupled tables ask of the gateway, within the transaction that asks.
create foreign table modak.gateway_order (
    verb    text options (column_name 'verb'),
    request text options (column_name 'request'),
    answer  text options (column_name 'answer')
) server modak_gateway options (schema_name 'modak', table_name 'order', use_remote_estimate 'false');

-- Holds the object store's key and secret in a user mapping, which only its owner and superusers can read. Nobody ever connects to it.
create server modak_storage foreign data wrapper postgres_fdw;
