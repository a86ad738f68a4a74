-- Maintenance of decoupled tables: snapshots leave the metadata long before their files leave the store, for readers may be at them still.

create table modak.lake_leftovers (
    table_id bigint not null references modak.decoupled on delete cascade,
    location text not null,
    since    timestamptz not null default now(),
    primary key (table_id, location)
);
comment on table modak.lake_leftovers is 'Files of decoupled tables that only expired snapshots had. They are removed when nobody can be reading them any more.';
comment on column modak.lake_leftovers.since is 'When the snapshots that had the file were let go.';
