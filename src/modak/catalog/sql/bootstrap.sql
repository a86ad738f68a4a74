-- Where the catalog keeps count of itself. Written before any migration runs, and never changed afterwards.
create schema if not exists modak;
create table if not exists modak.schema_meta (
    singleton         boolean primary key default true check (singleton),
    version           integer not null,
    catalog_id        text not null default gen_random_uuid()::text,
    program           text not null,
    routines_checksum text not null,
    updated_at        timestamptz not null default now()
);
create table if not exists modak.schema_migrations (
    version    integer primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default now()
);
