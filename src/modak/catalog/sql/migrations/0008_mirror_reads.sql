-- Reading mirrored tables from the lake.

alter table modak.tables add column hybrid boolean not null default false;
comment on column modak.tables.hybrid is 'Mirrored: on the gateway''s port queries are answered by the lake once it has come to their moment.';
alter table modak.tables add constraint hybrid_only_on_mirrored check (mode = 'mirrored' or not hybrid);

-- Where a mirror was copied: after a failover its slot is not there, and this says why.

alter table modak.mirrors add column system_id text, add column timeline bigint;
comment on column modak.mirrors.system_id is 'The server that the copy was made on, by its system identifier.';
comment on column modak.mirrors.timeline is 'Its timeline then: another one now means that a standby was promoted.';

-- Moments at which several mirrored tables can be read together.

create table modak.mirror_tags (
    table_id         bigint not null references modak.tables on delete cascade,
    lsn              bigint not null,
    tag              text not null,
    lake_snapshot_id bigint,
    lake_props       jsonb not null,
    created_at       timestamptz not null default now(),
    primary key (table_id, lsn)
);
create index mirror_tags_by_lsn on modak.mirror_tags (lsn);
comment on table modak.mirror_tags is 'Places in the WAL at which mirrored tables were seen in the lake together: the same LSN is the same moment in all of them.';
comment on column modak.mirror_tags.lsn is 'Every transaction that committed before is in the snapshot, and none that came later.';
comment on column modak.mirror_tags.tag is 'The name of the snapshot in the Iceberg table, for VERSION AS OF. NULL snapshots, of tables that never had a row, have none.';
comment on column modak.mirror_tags.lake_snapshot_id is 'S of that moment; lake_props points to it.';
