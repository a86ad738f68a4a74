-- Corrections of cold rows: what the fold, retention and untier need to know of them.

alter table modak.delta add column placed boolean not null default false;
comment on column modak.delta.placed is 'The writer saw the lake''s row at old_tier_key, or at tier_key without one. False: the lake may hold the key anywhere.';
-- Where the lake holds the row: the fold asks by it which files it has to read.
drop index modak.delta_by_tier_key;
create index delta_by_place on modak.delta (table_id, (coalesce(old_tier_key, tier_key)));
drop function if exists modak.put_delta(bigint, text, smallint, bigint, bigint, jsonb);

create table modak.folded (
    op_id    text not null,
    version  bigint not null,
    -- Not to op_log: the snapshot this is written in may be older than the operation.
    table_id bigint not null references modak.tables on delete cascade,
    pk       text,
    tier_key bigint,
    primary key (op_id, version)
);
comment on table modak.folded is 'The corrections that an open fold carries to the lake, by version; its publication clears exactly these.';
comment on column modak.folded.pk is 'Where the tier key is no part of it: corrections of the same row made since are told where the lake has it now.';
comment on column modak.folded.tier_key is 'Where the fold puts the row.';

alter table modak.read_pins add column holds_delta boolean not null default true;
comment on column modak.read_pins.holds_delta is 'The reader fetches corrections apart from its pin, so none may be cleared. False: it reads them in the snapshot it read S in.';

alter table modak.cutline add column revision bigint not null default 0;
comment on column modak.cutline.revision is 'Rises with every publication that changed rows of the cold tier; T alone does not count.';

alter table modak.tables add column check_cold_keys boolean not null default false;
comment on column modak.tables.check_cold_keys is 'A cold INSERT looks its key up in the lake and the delta, and fails where it exists.';

alter table modak.op_log drop constraint op_log_op_kind_check;
alter table modak.op_log add constraint op_log_op_kind_check check (op_kind in
    ('tiering', 'compaction', 'maintenance', 'retention', 'ingest', 'load', 'copy', 'untier'));

-- Says more than before; a function's result cannot change in place.
drop function if exists modak.hold_line(bigint);
