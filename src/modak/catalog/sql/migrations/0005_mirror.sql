-- Mirrored tables: how far each one has followed the stream, and what stops it.

create table modak.mirrors (
    table_id    bigint primary key references modak.tables on delete cascade,
    applied_lsn bigint not null,
    copied_lsn  bigint,
    shapes      jsonb not null default '[]',
    leaves      jsonb not null default '[]',
    parked_at   timestamptz,
    updated_at  timestamptz not null default now(),
    constraint shapes_is_array check (jsonb_typeof(shapes) = 'array'),
    constraint leaves_is_array check (jsonb_typeof(leaves) = 'array')
);
comment on table modak.mirrors is 'Mirrored tables: where each one stands in the stream of its slot.';
comment on column modak.mirrors.applied_lsn is 'Every transaction that committed before is in the lake. The slot keeps the stream from the lowest of them on.';
comment on column modak.mirrors.copied_lsn is 'Where the initial copy stood in the stream. NULL: it is not complete, and F says nothing.';
comment on column modak.mirrors.shapes is 'The columns as the stream described them, oldest first, with the numbers they have in the table.';
comment on column modak.mirrors.leaves is 'The files that the rows stand in, as last seen: what happens to a partition without its rows is not in the stream.';
comment on column modak.mirrors.parked_at is 'The stream could not be followed: the table waits for modak resync, and holds no other back. modak.problems says why.';

alter table modak.op_log drop constraint op_log_op_kind_check;
alter table modak.op_log add constraint op_log_op_kind_check check (op_kind in
    ('tiering', 'compaction', 'maintenance', 'retention', 'ingest', 'load', 'copy', 'untier', 'mirror'));
