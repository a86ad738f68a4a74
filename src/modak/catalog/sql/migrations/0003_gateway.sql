-- The gateway: how Postgres reaches the cold tier, and what a table's own view may see of the catalog.

-- Corrections become one partition per table: a table's owner reads and writes those of his table only, and each has statistics of
-- its own. The last partition takes rows of tables that were written into the catalog by hand.
drop view if exists modak.status;
drop index modak.delta_by_version, modak.delta_by_tier_key;
alter table modak.delta rename to delta_before_0003;
create table modak.delta (
    table_id     bigint not null references modak.tables on delete cascade,
    pk           text not null,
    op           smallint not null check (op in (0, 1)),
    tier_key     bigint not null,
    old_tier_key bigint,
    version      bigint not null default nextval('modak.delta_version'),
    payload      jsonb,
    constraint delta_key primary key (table_id, pk),
    constraint upsert_has_image check (op = 1 or payload is not null)
) partition by list (table_id);
comment on table modak.delta is 'Corrections of cold rows, newest only: op 0 replaces or adds, op 1 removes. Merged on read, folded by compaction.';
create index delta_by_version on modak.delta (table_id, version);
create index delta_by_tier_key on modak.delta (table_id, tier_key);
create table modak.delta_other partition of modak.delta default;
insert into modak.delta select * from modak.delta_before_0003;
drop table modak.delta_before_0003;

-- The cold side of a view: which build of it is in use, and the tier key up to which its foreign tables reach (never below T).
alter table modak.tables add column cold_build integer not null default 0;
alter table modak.tables add column cold_bound bigint not null default -9223372036854775808;
comment on column modak.tables.cold_build is 'Number of the relation modak.cold_<table_id>_<build> that the view reads; 0: a view from before the gateway.';
comment on column modak.tables.cold_bound is 'Foreign tables of the cold side cover every key below this one; T never passes it.';

create extension if not exists postgres_fdw with schema modak;
-- The gateway writes its address and the password of this mapping when it starts.
create server modak_gateway foreign data wrapper postgres_fdw
    options (host '127.0.0.1', port '5439', dbname 'lake', use_remote_estimate 'true', fetch_size '10000', connect_timeout '10', fdw_startup_cost '10');
create user mapping for public server modak_gateway options (user 'modak_gateway', password 'none yet');
create table modak.gateway (
    singleton  boolean primary key default true check (singleton),
    verifier   text not null,
    updated_at timestamptz not null default now()
);
comment on table modak.gateway is 'What a gateway checks the password of Postgres''s own connections against: a SCRAM verifier, never the password.';

-- Whole queries: the gateway answers what it is asked for here. Only modak.query and modak_explain, which say who asks, may read it.
create foreign table modak.gateway_query (
    kind   text options (column_name 'kind'),
    sql    text options (column_name 'sql'),
    caller text options (column_name 'caller'),
    path   text options (column_name 'path'),
    vals   text[] options (column_name 'vals')
) server modak_gateway options (schema_name 'modak', table_name 'query', use_remote_estimate 'false');
