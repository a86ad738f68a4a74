-- Whose lake it is: a dump, a copy or a clone of a database has the same catalog, and must not write to the same files.

create table modak.ownership (
    singleton     boolean primary key default true check (singleton),
    claim         text,
    system_id     text not null,
    database_id   bigint not null,
    database_name text not null,
    claimed_at    timestamptz not null default now()
);
comment on table modak.ownership is 'Which database this catalog was at work in when it claimed its lake tables; written by the first job.';
comment on column modak.ownership.claim is 'What each lake table''s own file must say too. NULL: this database is a copy that leaves the lake to another one.';
comment on column modak.ownership.system_id is 'The server, by the identifier that initdb gave it.';
comment on column modak.ownership.database_id is 'The database, by its OID there.';
