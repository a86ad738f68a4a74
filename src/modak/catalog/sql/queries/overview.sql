-- name: list_operations
-- The journal, newest first, with the rows that its tasks have moved. Each table's index gives the newest of that table, so little is read.
select o.op_id, t.schema_name, t.table_name, o.op_kind, o.phase, o.snapshot, o.worker, o.started_at, o.updated_at, t.tier_key_type,
       extract(epoch from o.updated_at - o.started_at)::float8 as seconds,
       coalesce((o.details->>'rows')::bigint, (select sum(g.rows_done) from modak.op_progress g where g.op_id = o.op_id))::bigint as rows_moved,
       (o.details->>'old_tier_key_hi')::bigint as old_tier_key_hi, (o.details->>'new_tier_key_hi')::bigint as new_tier_key_hi
  from modak.tables t
 cross join lateral (select l.* from modak.op_log l
                      where l.table_id = t.table_id and (%(kind)s::text is null or l.op_kind = %(kind)s)
                        and (%(before)s::timestamptz is null or l.started_at < %(before)s)
                      order by l.started_at desc limit %(limit)s) o
 where %(table_id)s::bigint is null or t.table_id = %(table_id)s
 order by o.started_at desc, o.op_id limit %(limit)s;

-- name: list_throughput
-- Rows moved per step of time, by kind; only operations that were published count.
select date_bin(make_interval(secs => %(step_seconds)s), o.updated_at, 'epoch') as at, o.op_kind, count(*) as operations,
       coalesce(sum(coalesce((o.details->>'rows')::bigint,
                             (select sum(g.rows_done) from modak.op_progress g where g.op_id = o.op_id))), 0)::bigint as rows_moved
  from modak.op_log o
 where o.table_id = %(table_id)s and o.phase = 'advanced' and o.started_at >= now() - make_interval(secs => %(seconds)s)
 group by 1, 2 order by 1, 2;

-- name: list_open_everywhere
-- Operations that are not over, and for how long nothing was heard of each. ``told_seconds``: since somebody last wrote down why he cannot go on with
-- the table, or will try again; 0 for a mirrored table that is parked, of which that is said once.
select t.schema_name, t.table_name, t.enabled, o.op_id, o.op_kind, o.phase, o.started_at,
       extract(epoch from now() - greatest(o.updated_at, (select max(g.updated_at) from modak.op_progress g where g.op_id = o.op_id)))::float8
           as quiet_seconds,
       case when exists (select from modak.mirrors m where m.table_id = o.table_id and m.parked_at is not null) then 0
            else (select extract(epoch from now() - max(greatest(p.last_seen, p.next_attempt))) from modak.problems p
                   where p.table_id = o.table_id and p.job <> 'backlog')
       end::float8 as told_seconds
  from modak.op_log o join modak.tables t using (table_id)
 where o.phase in ('flushing', 'committed')
 order by o.started_at;

-- name: list_pins
select t.schema_name, t.table_name, p.holder, p.pinned_lake_snapshot_id as snapshot, p.created_at, p.expires_at
  from modak.read_pins p join modak.tables t using (table_id)
 where p.expires_at > now() and (%(table_id)s::bigint is null or p.table_id = %(table_id)s)
 order by p.created_at limit 50;

-- name: list_oldest_transactions
-- Whose snapshots are the oldest: reclaim and expiry wait for them. Without the query's text, which may hold values.
select a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, a.backend_type) as who, a.state,
       extract(epoch from now() - a.xact_start)::float8 as seconds
  from pg_stat_activity a
 where a.datname = current_database() and a.xact_start is not null and a.pid <> pg_backend_pid()
   and (a.backend_xmin is not null or a.backend_xid is not null)
 order by a.xact_start limit 5;

-- name: list_slots
select s.slot_name::text as slot_name, s.active,
       greatest(case when pg_is_in_recovery() then 0 else pg_current_wal_lsn() - s.restart_lsn end, 0)::bigint as retained_bytes
  from pg_replication_slots s
 where s.slot_name in (select t.slot_name from modak.tables t where t.slot_name is not null);

-- name: list_problems
select t.schema_name, t.table_name, p.job, p.code, p.message, p.hint, p.attempts, p.first_seen, p.last_seen
  from modak.problems p join modak.tables t using (table_id)
 where %(table_id)s::bigint is null or p.table_id = %(table_id)s
union all
select schema_name, table_name, job, code, message, hint, attempts, first_seen, last_seen
  from modak.missing_views where %(table_id)s::bigint is null or table_id = %(table_id)s
union all
select schema_name, table_name, job, code, message, hint, attempts, first_seen, last_seen
  from modak.lake_problems where %(table_id)s::bigint is null
 order by first_seen;

-- name: list_heap_sizes
-- Every partition of the heap with what it takes on disk. Where a relation is locked, this waits: callers set a lock_timeout.
select n.nspname::text as schema_name, c.relname::text as name, pg_total_relation_size(c.oid) as bytes,
       case when c.reltuples >= 0 then c.reltuples::bigint end as estimated_rows
  from pg_partition_tree(%(table_id)s::oid::regclass) p join pg_class c on c.oid = p.relid join pg_namespace n on n.oid = c.relnamespace
 where p.isleaf;

-- name: sum_heap_bytes
select t.table_id, coalesce(sum(pg_total_relation_size(p.relid)), 0)::bigint as bytes
  from modak.tables t join pg_class c on c.oid = t.table_id::oid, pg_partition_tree(c.oid::regclass) p
 where p.isleaf and t.table_id = any (%(ids)s) group by t.table_id;

-- name: list_sampled
-- What a sample of every table takes from the catalog, without a look at any of them. Corrections are estimated as in list_watched.
select t.table_id, c.tier_key_hi, coalesce(p.pins, 0) as pins, coalesce(s.labels, 0) as staged,
       case when pg_stat_get_tuples_inserted(d.oid) + pg_stat_get_tuples_deleted(d.oid) > 0 then pg_stat_get_live_tuples(d.oid)
            else greatest(coalesce(d.reltuples, 0), 0) end::bigint as delta_rows
  from modak.tables t
  left join modak.cutline c using (table_id)
  left join pg_class d on d.relnamespace = 'modak'::regnamespace and d.relname = ('delta_' || t.table_id)::name
  left join (select table_id, count(*) as pins from modak.read_pins where expires_at > now() group by table_id) p using (table_id)
  left join (select table_id, count(*) as labels from modak.load_labels where state = 'staged' group by table_id) s using (table_id);

-- name: list_watched
-- What whoever watches wants to know of every table, at a price that does not grow with what waits: corrections are what Postgres's counters make of them, or, where a crash
-- has reset those, the last analyze. modak.status counts them one by one, which takes longest when there are most.
select t.table_id, t.schema_name, t.table_name, t.tier_key_type, c.updated_at as cutline_updated_at,
       coalesce(r.pins, 0) as read_pins, coalesce(s.labels, 0) as staged_loads, coalesce(q.jobs, '{}') as problems,
       case when pg_stat_get_tuples_inserted(d.oid) + pg_stat_get_tuples_deleted(d.oid) > 0 then pg_stat_get_live_tuples(d.oid)
            else greatest(coalesce(d.reltuples, 0), 0) end::bigint as delta_rows
  from modak.tables t
  left join modak.cutline c using (table_id)
  left join pg_class d on d.relnamespace = 'modak'::regnamespace and d.relname = ('delta_' || t.table_id)::name
  left join (select table_id, count(*) as pins from modak.read_pins where expires_at > now() group by table_id) r using (table_id)
  left join (select table_id, count(*) as labels from modak.load_labels where state = 'staged' group by table_id) s using (table_id)
  left join (select table_id, array_agg(job order by job) as jobs from modak.problems group by table_id) q using (table_id)
 order by t.schema_name, t.table_name;

-- name: list_partition_states
select t.schema_name, t.table_name, p.state, count(*) as n
  from modak.partitions p join modak.tables t using (table_id) group by t.table_id, p.state order by 1, 2, 3;

-- name: list_lake_troubles
-- Once per table and job, however many commits of it stay.
select schema_name, table_name, job, count(*) as n from modak.lake_problems group by 1, 2, 3 order by 1, 2, 3;

-- name: list_lake_pointers
select table_id, lake_props->>'snapshot_id' as snapshot_id, lake_props->>'metadata_location' as metadata_location from modak.cutline;

-- name: find_maintenance_request
select requested_by, requested_at from modak.maintenance_requests where table_id = %(table_id)s;
