-- name: insert_mirror
insert into modak.mirrors (table_id, applied_lsn)
values (%(table_id)s, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint)
on conflict (table_id) do update
   set applied_lsn = excluded.applied_lsn, copied_lsn = null, shapes = '[]', leaves = '[]', parked_at = null, updated_at = now();

-- name: read_mirror
select m.*, exists (select from modak.copy_progress g where g.table_id = m.table_id) as copying
  from modak.mirrors m where m.table_id = %(table_id)s;

-- name: list_mirrors
select m.*, exists (select from modak.copy_progress g where g.table_id = m.table_id) as copying
  from modak.mirrors m join modak.tables t using (table_id) where t.slot_name = %(slot)s order by m.table_id;

-- name: lowest_applied
-- What the slot must keep: a table that is still being copied needs the stream from its copy on, a parked one nothing.
select min(m.applied_lsn) as lsn from modak.mirrors m join modak.tables t using (table_id)
 where t.slot_name = %(slot)s and m.parked_at is null;

-- name: follow_stream
update modak.mirrors set applied_lsn = %(lsn)s, updated_at = now()
 where table_id = %(table_id)s and applied_lsn = %(expected)s and parked_at is null;

-- name: set_frontier
-- F never goes back while the table is followed; a new copy clears it first.
update modak.cutline set replicated_lsn = %(lsn)s where table_id = %(table_id)s;

-- name: start_following
update modak.mirrors set applied_lsn = %(lsn)s, copied_lsn = %(lsn)s, leaves = %(leaves)s, shapes = %(shapes)s, updated_at = now()
 where table_id = %(table_id)s;

-- name: save_shapes
update modak.mirrors set shapes = %(shapes)s where table_id = %(table_id)s;

-- name: save_leaves
update modak.mirrors set leaves = %(leaves)s where table_id = %(table_id)s;

-- name: park_mirror
update modak.mirrors set parked_at = coalesce(parked_at, now()) where table_id = %(table_id)s;

-- name: start_copy
insert into modak.copy_progress (table_id, consistent_lsn, ranges) values (%(table_id)s, %(lsn)s, %(ranges)s)
on conflict (table_id) do update
   set consistent_lsn = excluded.consistent_lsn, ranges = excluded.ranges, chunks_done = 0, last_pk = null, started_at = now(),
       updated_at = now();

-- name: read_copy
select consistent_lsn, ranges, chunks_done from modak.copy_progress where table_id = %(table_id)s;

-- name: note_chunks
update modak.copy_progress set ranges = %(ranges)s, chunks_done = %(chunks_done)s, updated_at = now() where table_id = %(table_id)s;

-- name: end_copy
delete from modak.copy_progress where table_id = %(table_id)s;

-- name: list_filled_columns
-- Columns that were added with a value for the rows that stood there already, kept in the catalog or written into a new file.
select a.attname::text as name from pg_attribute a
 where a.attrelid = %(table_id)s::oid and a.attnum = any(%(numbers)s) and not a.attisdropped and (a.atthasmissing or a.atthasdef);

-- name: list_mirror_lags
-- How far behind each mirrored table is, in bytes of WAL and in seconds since its F moved, and what its slot keeps.
select m.table_id, t.schema_name, t.table_name, c.replicated_lsn as frontier, m.parked_at is not null as is_parked,
       m.copied_lsn is null as is_copying,
       greatest(n.lsn - m.applied_lsn, 0)::bigint as lag_bytes, extract(epoch from now() - m.updated_at)::float8 as lag_seconds,
       coalesce((select n.lsn - (s.restart_lsn - '0/0'::pg_lsn) from pg_replication_slots s where s.slot_name = t.slot_name), 0)::bigint
           as retained_bytes
  from modak.mirrors m join modak.tables t using (table_id) join modak.cutline c using (table_id)
 cross join (select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end - '0/0'::pg_lsn)::bigint
                 as lsn) n
 order by t.schema_name, t.table_name;
