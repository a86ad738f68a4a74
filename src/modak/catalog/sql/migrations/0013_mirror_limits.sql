-- How much WAL a mirrored table may keep, and how old what the lake has of it is.

alter table modak.tables add column wal_limit bigint;
alter table modak.tables add constraint wal_limit_only_on_mirrored check (mode = 'mirrored' or wal_limit is null);
alter table modak.tables add constraint wal_limit_is_a_size check (wal_limit >= 0);
comment on column modak.tables.wal_limit is 'Mirrored: bytes of WAL that the table may keep while it is not followed. Beyond, it is parked. NULL: the default. 0: never.';

alter table modak.mirrors add column as_of timestamptz;
comment on column modak.mirrors.as_of is 'The time that F stands for: when its last transaction committed, or when a pass found nothing after it.';
