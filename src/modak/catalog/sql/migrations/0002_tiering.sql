-- Tiering: what happens to a partition while it is being copied, and how far the copy has come.

create table modak.captured (
    -- From the delta's own sequence: a row that moved between a captured partition and a cold one has events in both tables, and
    -- their order decides. Negative (minus a correction's version)
    -- for a row that stood there when the copy began and whose key that correction knows.
    seq          bigint primary key default nextval('modak.delta_version'),
    table_id     bigint not null references modak.tables on delete cascade,
    partition_id bigint not null,
    -- The writer's transaction: what the flush's snapshot saw of it is in the lake already.
    writer       xid8 not null default pg_current_xact_id(),
    pk           text not null,
    op           smallint not null check (op in (0, 1)),
    tier_key     bigint not null,
    payload      jsonb
);
comment on table modak.captured is 'Writes to partitions that are being copied; the advance turns what the copy missed into corrections.';
create index captured_by_partition on modak.captured (table_id, partition_id, pk, seq);

create table modak.op_progress (
    op_id      text not null references modak.op_log on delete cascade,
    task       integer not null,
    rows_done  bigint not null default 0,
    rows_total bigint,
    updated_at timestamptz not null default now(),
    primary key (op_id, task)
);
comment on table modak.op_progress is 'Rows moved so far by each task of an operation.';

alter table modak.tables add column lake_columns jsonb not null default '[]';
comment on column modak.tables.lake_columns is 'Heap column (attnum) to lake field id, so that a rename is not taken for a drop and an add.';
