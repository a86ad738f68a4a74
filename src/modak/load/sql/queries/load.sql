-- name: lock_label
-- Not a wait: whoever comes second is told so at once. Two keys, a space of its own among advisory locks.
select pg_try_advisory_xact_lock(%(high)s::integer, %(low)s::integer) as mine;

-- name: find_label
select l.state, l.hot_rows, l.delta_rows, l.spooled_rows, l.staged_files, l.digest
  from modak.load_labels l where l.table_id = %(table_id)s and l.label = %(label)s;

-- name: hold_seam
select h.line, h.floor_line, h.snapshot from modak.hold_line(%(table_id)s) h;

-- name: record_hot_label
-- Rows were copied straight into the heap while nothing was held. They count only if T is still where they were compared with it; from
-- here on it is held.
insert into modak.load_labels (table_id, label, state, hot_rows, digest, committed_at)
select %(table_id)s, %(label)s, 'committed', %(hot_rows)s, %(digest)s, now()
  from modak.hold_line(%(table_id)s) h where h.line = %(line)s
returning label;

-- name: record_label
insert into modak.load_labels
       (table_id, label, state, hot_rows, delta_rows, spooled_rows, staged_files, tier_key_lo, tier_key_hi, digest, committed_at)
values (%(table_id)s, %(label)s, %(state)s, %(hot_rows)s, %(delta_rows)s, %(spooled_rows)s, %(staged_files)s, %(tier_key_lo)s,
        %(tier_key_hi)s, %(digest)s, case when %(state)s = 'committed' then now() end);

-- name: find_load_obstacles
-- What keeps rows of a table from going to the lake past its heap: constraints that only the heap can check, and triggers that are not ours.
select exists (select from pg_constraint k where k.conrelid = %(table_id)s::oid and k.contype = 'f') as has_foreign_key,
       exists (select from pg_trigger t
                where t.tgrelid in (select relid from pg_partition_tree(%(table_id)s::oid::regclass))
                  and not t.tgisinternal and t.tgname !~ '^modak_') as has_trigger,
       array(select format('%%s', pg_get_expr(k.conbin, k.conrelid)) from pg_constraint k
              where k.conrelid = %(table_id)s::oid and k.contype = 'c' order by k.conname) as checks,
       array(select k.conname::text from pg_constraint k
              where k.conrelid = %(table_id)s::oid and k.contype = 'c' order by k.conname) as check_names;

-- name: find_spill_conditions
-- Which rows land in a DEFAULT partition: what no other one takes. NULL for one that takes everything.
select pg_get_partition_constraintdef(c.oid) as condition
  from pg_partition_tree(%(table_id)s::oid::regclass) t
  join pg_class c on c.oid = t.relid
 where t.isleaf and pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT';

-- name: lock_labels
select l.label, pg_try_advisory_xact_lock(l.high, l.low) as mine
  from unnest(%(labels)s::text[], %(highs)s::integer[], %(lows)s::integer[]) as l(label, high, low);

-- name: open_loads
-- The table as it is now, and which of the labels are recorded; the mark says whether columns or registration changed since they were read.
select c.tier_key_hi as line,
       current_setting('transaction_isolation') as isolation,
       to_regclass(%(stage)s) is not null as has_stage,
       md5(concat(t.xmin, ' ', (
           select string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attidentity, a.attgenerated,
                                       a.atthasdef), ',' order by a.attnum)
             from pg_attribute a where a.attrelid = t.table_id::oid and a.attnum > 0 and not a.attisdropped))) as mark,
       array(select l.label from modak.load_labels l where l.table_id = t.table_id and l.label = any(%(labels)s)) as recorded
  from modak.tables t
  join modak.cutline c on c.table_id = t.table_id
 where t.table_id = %(table_id)s;

-- name: record_hot_labels
-- As record_hot_label, for several labels.
insert into modak.load_labels (table_id, label, state, hot_rows, digest, committed_at)
select %(table_id)s, l.label, 'committed', l.hot_rows, l.digest, now()
  from modak.hold_line(%(table_id)s) h
 cross join unnest(%(labels)s::text[], %(rows)s::bigint[], %(digests)s::text[]) as l(label, hot_rows, digest)
 where h.line = %(line)s;
