-- The catalog: the only channel between Postgres clients, the worker, the gateway and third-party readers of the seam.
-- modak.tables holds what was registered; everything that changes while Modak runs has a row of its own, keyed by table_id.

create table modak.storage_profiles (
    profile_name   text primary key check (profile_name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    lake_format    text check (lake_format in ('iceberg')),
    warehouse      text not null default '',
    lake_config    jsonb not null default '{}',
    credential_ref text check (credential_ref ~ '^[A-Z0-9_]{1,63}$'),
    is_default     boolean not null default false,
    constraint lake_config_is_object check (jsonb_typeof(lake_config) = 'object'),
    -- Secrets come from the environment through credential_ref; a row that holds one would end up in dumps and replicas.
    constraint lake_config_holds_no_secret check
        (lake_config::text !~* ('"[^"]*(secret|passw|passphrase|token|credential|authorization|connection[-_.]?string'
                                || '|(access|account|private|api|shared)[-_.]?key)[^"]*"\s*:')),
    constraint uris_hold_no_password check
        (lake_config::text !~ '://[^/@\s"]*:[^/@\s"]*@' and warehouse !~ '://[^/@\s]*:[^/@\s]*@')
);
comment on table modak.storage_profiles is 'Named warehouses. Blank warehouse or NULL format: resolved from the worker''s environment.';
create unique index storage_profiles_one_default on modak.storage_profiles (is_default) where is_default;
insert into modak.storage_profiles (profile_name, is_default) values ('default', true);

create table modak.tables (
    table_id           bigint primary key,
    schema_name        text not null,
    table_name         text not null,
    primary_key_cols   text[] not null,
    tier_key_col       text not null,
    partition_scheme   jsonb not null default '{}',
    lake_format        text not null default 'iceberg' check (lake_format in ('iceberg')),
    lake_table_ref     text not null,
    storage_profile    text not null default 'default' references modak.storage_profiles on update cascade,
    mode               text not null default 'tiered' check (mode in ('tiered', 'mirrored')),
    publication_name   text,
    slot_name          text,
    heap_retention_lag text,
    lake_retention_lag text,
    keep_heap          boolean not null default false,
    maintenance_policy jsonb,
    -- Beyond the published columns; each has a default, so a row that names only the published ones is complete.
    tier_key_type      text not null default 'bigint' check (tier_key_type in
        ('smallint', 'integer', 'bigint', 'timestamp with time zone', 'timestamp without time zone', 'date')),
    surface            text not null default 'view' check (surface in ('view', 'heap')),
    heap_name          text,
    view_name          text,
    text_cols          text[] not null default '{}',
    tier_lag           text,
    reclaim_lag        text,
    premake            integer not null default 0 check (premake between 0 and 1000),
    enabled            boolean not null default true,
    original           jsonb not null default '{}',
    registered_at      timestamptz not null default now(),
    registered_by      text not null default session_user,
    constraint tables_name_once unique (schema_name, table_name),
    constraint tables_lake_table_once unique (storage_profile, lake_table_ref),
    constraint primary_key_not_empty check (cardinality(primary_key_cols) > 0),
    constraint partition_scheme_is_object check (jsonb_typeof(partition_scheme) = 'object'),
    constraint mirror_plumbing_only_on_mirrored check
        (mode = 'mirrored' or (publication_name is null and slot_name is null and heap_retention_lag is null)),
    constraint retention_and_keep_heap_only_on_tiered check
        (mode = 'tiered' or (lake_retention_lag is null and not keep_heap)),
    constraint keep_heap_without_lake_retention check (not (keep_heap and lake_retention_lag is not null))
);
comment on table modak.tables is 'Registered tables: written at registration, touched again only for policy edits.';
comment on column modak.tables.table_id is 'The heap''s OID.';
comment on column modak.tables.heap_name is 'Where the heap stands now, in the same schema.';
comment on column modak.tables.view_name is 'The two-tier view, in the same schema.';
comment on column modak.tables.text_cols is 'Columns kept as text in the lake because the user asked for it.';
comment on column modak.tables.original is 'What unregister puts back.';

create table modak.cutline (
    table_id         bigint primary key references modak.tables on delete cascade,
    tier_key_hi      bigint not null,
    lake_snapshot_id bigint,
    replicated_lsn   bigint,
    retention_line   bigint,
    lake_props       jsonb not null default '{}',
    updated_at       timestamptz not null default now(),
    constraint retention_below_cutline check (retention_line is null or retention_line <= tier_key_hi)
);
comment on table modak.cutline is 'The seam. T = tier_key_hi, S = lake_snapshot_id (a sequence number), F = replicated_lsn, R = retention_line.';
comment on column modak.cutline.lake_snapshot_id is 'Sequence number of the published Iceberg snapshot; its random id is in lake_props.snapshot_id. NULL: nothing published yet.';
comment on column modak.cutline.lake_props is 'The physical pointer to S: metadata_location and snapshot_id.';

create table modak.partitions (
    table_id         bigint not null references modak.tables on delete cascade,
    partition_id     bigint not null,
    schema_name      text not null,
    partition_name   text not null,
    tier_key_lo      bigint not null,
    tier_key_hi      bigint not null,
    state            text not null default 'hot' check (state in ('hot', 'sealing', 'tiering', 'tiered', 'dropped')),
    row_count        bigint,
    state_changed_at timestamptz not null default now(),
    primary key (table_id, partition_id),
    -- Equal only where both ends lie beyond what a key can express; such a partition stays hot.
    constraint partition_bounds_ordered check (tier_key_lo <= tier_key_hi)
);
comment on table modak.partitions is 'Life cycle of each heap partition; [tier_key_lo, tier_key_hi) in canonical keys.';
create index partitions_in_order on modak.partitions (table_id, tier_key_lo);

create sequence modak.delta_version;
create table modak.delta (
    table_id     bigint not null references modak.tables on delete cascade,
    pk           text not null,
    op           smallint not null check (op in (0, 1)),
    tier_key     bigint not null,
    old_tier_key bigint,
    version      bigint not null default nextval('modak.delta_version'),
    payload      jsonb,
    primary key (table_id, pk),
    constraint upsert_has_image check (op = 1 or payload is not null)
);
comment on table modak.delta is 'Corrections of cold rows, newest only: op 0 replaces or adds, op 1 removes. Merged on read, folded by compaction.';
create index delta_by_version on modak.delta (table_id, version);
create index delta_by_tier_key on modak.delta (table_id, tier_key);

create table modak.read_pins (
    pin_id                  bigint generated by default as identity primary key,
    table_id                bigint not null references modak.tables on delete cascade,
    pinned_lake_snapshot_id bigint,
    pinned_tier_key_hi      bigint not null,
    created_at              timestamptz not null default now(),
    expires_at              timestamptz not null default now() + interval '15 minutes',
    holder                  text not null default session_user
);
comment on table modak.read_pins is 'Readers that hold (T, S). The oldest unexpired one is the horizon of reclaim, fold and expiry.';
create index read_pins_by_table on modak.read_pins (table_id, expires_at);

create table modak.op_log (
    op_id      text primary key default gen_random_uuid()::text,
    table_id   bigint not null references modak.tables on delete cascade,
    op_kind    text not null check (op_kind in
        ('tiering', 'compaction', 'maintenance', 'retention', 'ingest', 'load', 'copy')),
    phase      text not null default 'flushing' check (phase in ('flushing', 'committed', 'advanced', 'abandoned')),
    snapshot   bigint,
    details    jsonb not null default '{}',
    worker     text not null default session_user,
    started_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
comment on table modak.op_log is 'Journal of every operation that writes to the lake; what a restart resumes, adopts or abandons.';
create index op_log_by_table on modak.op_log (table_id, started_at);
create index op_log_open on modak.op_log (table_id) where phase in ('flushing', 'committed');

create table modak.load_labels (
    table_id     bigint not null references modak.tables on delete cascade,
    label        text not null check (label <> '' and octet_length(label) <= 256),
    state        text not null check (state in ('staged', 'committed')),
    hot_rows     bigint not null default 0,
    delta_rows   bigint not null default 0,
    spooled_rows bigint not null default 0,
    staged_files text[] not null default '{}',
    tier_key_lo  bigint,
    tier_key_hi  bigint,
    digest       text,
    version      bigint not null default nextval('modak.delta_version'),
    created_at   timestamptz not null default now(),
    committed_at timestamptz,
    primary key (table_id, label),
    constraint staged_has_range check (state <> 'staged' or (tier_key_lo is not null and tier_key_hi is not null))
);
comment on table modak.load_labels is 'Stream Load ledger: a label commits with its batch and answers every replay.';
create index load_labels_staged on modak.load_labels (table_id, tier_key_lo) where state = 'staged';

create table modak.maintenance_requests (
    table_id     bigint primary key references modak.tables on delete cascade,
    requested_by text not null default session_user,
    requested_at timestamptz not null default now()
);
comment on table modak.maintenance_requests is 'Out-of-schedule maintenance, at most one per table; claimed by DELETE ... RETURNING.';

create table modak.lake_stats (
    table_id     bigint primary key references modak.tables on delete cascade,
    stats        jsonb not null default '{}',
    warnings     jsonb not null default '[]',
    policy       jsonb not null default '{}',
    collected_at timestamptz not null default now()
);
comment on table modak.lake_stats is 'Lake health as last seen by the worker.';

create table modak.copy_progress (
    table_id       bigint primary key references modak.tables on delete cascade,
    consistent_lsn bigint,
    last_pk        text,
    chunks_done    integer not null default 0,
    ranges         jsonb not null default '[]',
    started_at     timestamptz not null default now(),
    updated_at     timestamptz not null default now()
);
comment on table modak.copy_progress is 'Initial copies in flight; gone when the copy is done.';

create table modak.problems (
    table_id   bigint not null references modak.tables on delete cascade,
    job        text not null,
    code       text not null,
    message    text not null,
    hint       text,
    details    jsonb not null default '{}',
    attempts   integer not null default 1,
    first_seen timestamptz not null default now(),
    last_seen  timestamptz not null default now(),
    primary key (table_id, job)
);
comment on table modak.problems is 'Why a job of a table does not get on, and the way out; removed when it succeeds.';

-- The Iceberg catalog that Spark (JDBC) and PyIceberg (SQL) share, out of the user's schemas. Both create these tables themselves
-- if they must; made here, they have an owner and can be granted.
create schema modak_lake;
comment on schema modak_lake is 'Iceberg catalog of the embedded kind: names and metadata locations of the lake''s tables.';
create table modak_lake.iceberg_tables (
    catalog_name               varchar(255) not null,
    table_namespace            varchar(255) not null,
    table_name                 varchar(255) not null,
    metadata_location          varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type               varchar(5),
    primary key (catalog_name, table_namespace, table_name)
);
create table modak_lake.iceberg_namespace_properties (
    catalog_name   varchar(255) not null,
    namespace      varchar(255) not null,
    property_key   varchar(255) not null,
    property_value varchar(1000),
    primary key (catalog_name, namespace, property_key)
);
