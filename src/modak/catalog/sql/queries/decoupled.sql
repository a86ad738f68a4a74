-- name: find_decoupled
select table_id, schema_name as schema, table_name as name, lake_table_ref as ref, storage_profile as profile, columns, partition_by, is_attached,
       lake_table_uuid as uuid
  from modak.decoupled where table_id = %(table_id)s;

-- name: list_decoupled
-- By the names that the foreign tables have now: they may have been renamed. Without one the table was dropped by itself, and is not listed.
select d.table_id, n.nspname::text as schema, c.relname::text as name, d.lake_table_ref as ref, d.storage_profile as profile, d.columns,
       d.partition_by, d.is_attached, d.lake_table_uuid as uuid
  from modak.decoupled d
  join pg_foreign_table f on f.ftoptions @> array['schema_name=iceberg', 'table_name=' || d.table_id]
  join pg_foreign_server s on s.oid = f.ftserver and s.srvname = 'modak_gateway'
  join pg_class c on c.oid = f.ftrelid
  join pg_namespace n on n.oid = c.relnamespace
 order by 2, 3;

-- name: lake_pointer
select metadata_location from modak_lake.iceberg_tables
 where catalog_name = %(catalog)s and table_namespace = %(namespace)s and table_name = %(name)s;

-- name: hold_lake_pointer
select metadata_location from modak_lake.iceberg_tables
 where catalog_name = %(catalog)s and table_namespace = %(namespace)s and table_name = %(name)s for update;

-- name: next_to_sweep
select table_id from modak.decoupled
 where swept_at < now() - make_interval(secs => %(seconds)s) and not pg_is_in_recovery() order by swept_at limit 1;

-- name: note_sweep
update modak.decoupled set swept_at = now()
 where table_id = %(table_id)s and swept_at < now() - make_interval(secs => %(seconds)s) returning table_id;

-- name: lake_moment
-- One statement, so that it is one snapshot: what is in doubt in it has not committed in it, whatever pg_xact_status says a moment later.
select (select coalesce(jsonb_object_agg(i.catalog_name || ' ' || i.table_namespace || '.' || i.table_name, i.metadata_location), '{}')
          from modak_lake.iceberg_tables i
         where i.table_namespace || '.' || i.table_name in (select d.lake_table_ref from modak.decoupled d)) as pointers,
       array(select c.commit_id from modak.lake_commits c
              where not pg_visible_in_snapshot(c.xid::xid8, pg_current_snapshot())
                 or pg_xact_status(c.xid::xid8) is distinct from 'committed') as doubtful;

-- name: truncating_transaction
-- Whoever truncates a table is the only one to hold its strongest lock, and has a name for that if the WAL is kept for replicas. Of the names that
-- a transaction and its savepoints have, the oldest is its own; locks show the lower half of it.
with holder as (
    select min(l.virtualtransaction) as place
      from pg_foreign_table f
      join pg_foreign_server s on s.oid = f.ftserver and s.srvname = 'modak_gateway'
      join pg_locks l on l.locktype = 'relation' and l.relation = f.ftrelid and l.mode = 'AccessExclusiveLock' and l.granted
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
     where f.ftoptions @> array['schema_name=iceberg', 'table_name=' || %(table_id)s::text]
    having count(distinct l.virtualtransaction) = 1
), latest as (select pg_snapshot_xmax(pg_current_snapshot())::text::bigint as number)
select (t.number - ((t.number - l.transactionid::text::bigint) & 4294967295))::text as xid
  from holder h
  join pg_locks l on l.virtualtransaction = h.place and l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted, latest t
 order by age(l.transactionid) desc limit 1;

-- name: running_seconds
-- How long the oldest transaction of this database has been running, prepared ones included.
select coalesce(extract(epoch from now() - least(
           (select min(a.xact_start) from pg_stat_activity a
             where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'),
           (select min(p.prepared) from pg_prepared_xacts p where p.database = current_database()))), 0)::float8 as seconds;

-- name: note_leftovers
-- Again, if the snapshots stayed the last time after all: the time counts from when they really go.
insert into modak.lake_leftovers (table_id, location) select %(table_id)s, unnest(%(locations)s::text[])
on conflict (table_id, location) do update set since = now();

-- name: due_leftovers
select location from modak.lake_leftovers
 where table_id = %(table_id)s and since < now() - make_interval(secs => %(seconds)s) order by location limit 10000;

-- name: forget_leftovers
delete from modak.lake_leftovers where table_id = %(table_id)s and location = any (%(locations)s::text[]);

-- name: report_upkeep_problem
insert into modak.upkeep_problems (table_id, job, code, message, hint, next_attempt)
select d.table_id, %(job)s, %(code)s, %(message)s, %(hint)s, now() + make_interval(secs => %(seconds)s)
  from modak.decoupled d where d.table_id = %(table_id)s
on conflict (table_id, job) do update
   set code = excluded.code, message = excluded.message, hint = excluded.hint, last_seen = now(), next_attempt = excluded.next_attempt,
       attempts = case when modak.upkeep_problems.code = excluded.code then modak.upkeep_problems.attempts + 1 else 1 end,
       first_seen = case when modak.upkeep_problems.code = excluded.code then modak.upkeep_problems.first_seen else now() end;

-- name: clear_upkeep_problem
delete from modak.upkeep_problems where table_id = %(table_id)s and job = %(job)s;

-- name: keep_upkeep_problems
-- Of tables that the worker looks after; of others nobody would ever take them away.
delete from modak.upkeep_problems where job = %(job)s and table_id <> all (%(ids)s::bigint[]);
