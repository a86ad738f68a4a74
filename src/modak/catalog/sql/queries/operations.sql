-- name: start_operation
insert into modak.op_log (table_id, op_kind, details) values (%(table_id)s, %(op_kind)s, %(details)s) returning op_id;

-- name: move_operation
update modak.op_log set phase = %(phase)s, snapshot = %(snapshot)s, details = %(details)s where op_id = %(op_id)s;

-- name: list_open_operations
select op_id, table_id, op_kind, phase, snapshot, details
  from modak.op_log where table_id = %(table_id)s and phase in ('flushing', 'committed') order by started_at, op_id;

-- name: find_operation
select op_id, table_id, op_kind, phase, snapshot, details from modak.op_log where op_id = %(op_id)s;

-- name: report_progress
insert into modak.op_progress (op_id, task, rows_done) values (%(op_id)s, %(task)s, %(rows_done)s)
on conflict (op_id, task) do update set rows_done = excluded.rows_done, updated_at = now();

-- name: sum_progress
select coalesce(sum(rows_done), 0)::bigint as n from modak.op_progress where op_id = %(op_id)s;

-- name: lock_cutline
select tier_key_hi, lake_snapshot_id, replicated_lsn, retention_line, lake_props from modak.cutline where table_id = %(table_id)s for update;

-- name: publish_cutline
update modak.cutline
   set tier_key_hi = %(tier_key_hi)s, lake_snapshot_id = %(lake_snapshot_id)s, lake_props = %(lake_props)s,
       retention_line = %(retention_line)s, revision = revision + %(changed)s
 where table_id = %(table_id)s;

-- name: set_partition_state
update modak.partitions set state = %(state)s, row_count = coalesce(%(row_count)s::bigint, row_count)
 where table_id = %(table_id)s and partition_id = %(partition_id)s;

-- name: forget_partition
delete from modak.partitions where table_id = %(table_id)s and partition_id = %(partition_id)s;

-- name: rename_partition
update modak.partitions set schema_name = %(schema_name)s, partition_name = %(partition_name)s
 where table_id = %(table_id)s and partition_id = %(partition_id)s
   and (schema_name, partition_name) is distinct from (%(schema_name)s, %(partition_name)s);

-- name: captured_to_delta
-- What the flush's snapshot did not see, newest per key. The lake holds such a row where its first missed event found it; a key that
-- had a tombstone before (negative seq) was not flushed, and the tombstone knows the place. Captured is what became of a row in these
-- partitions, and the delta what is of its key below T: so whichever of them says that there is a row has its say (both: find_shared_key).
with missed as (
    select c.pk, c.op, c.tier_key, c.payload, c.seq
      from modak.captured c
     where c.table_id = %(table_id)s and c.partition_id = any(%(partition_ids)s)
       and (c.seq < 0 or not pg_visible_in_snapshot(c.writer, %(snapshot)s::pg_snapshot))
), first as (
    select distinct on (pk) pk, case when seq > 0 then tier_key end as lake_key from missed order by pk, seq
), newest as (
    select distinct on (pk) pk, op, tier_key, payload, seq from missed order by pk, seq desc
), placed as (
    insert into modak.delta as d (table_id, pk, op, tier_key, old_tier_key, version, payload)
    select %(table_id)s, n.pk, n.op, n.tier_key, f.lake_key, abs(n.seq), n.payload
      from newest n join first f using (pk)
    on conflict (table_id, pk) do update
       set op = least(d.op, excluded.op),
           payload = case d.op when 0 then d.payload else excluded.payload end,
           tier_key = case d.op when 0 then d.tier_key else excluded.tier_key end,
           old_tier_key = coalesce(excluded.old_tier_key, d.old_tier_key, d.tier_key),
           -- The row may have come into the partition after the copy, and the lake holds it where the correction before knew it.
           placed = d.placed and excluded.old_tier_key is null,
           -- A changed correction needs a version of its own: a fold may be about to clear the one it read.
           version = case d.op when 0 then d.version else nextval('modak.delta_version') end
    returning d.pk
)
select count(*) as n from placed;

-- name: find_shared_key
-- A row that was written to these partitions since the flush, or kept out of it, whose key a cold row has.
with newest as (
    select distinct on (c.pk) c.pk, c.op, c.tier_key, c.partition_id
      from modak.captured c
     where c.table_id = %(table_id)s and c.partition_id = any(%(partition_ids)s)
       and (c.seq < 0 or not pg_visible_in_snapshot(c.writer, %(snapshot)s::pg_snapshot))
     order by c.pk, c.seq desc
)
select n.pk, n.partition_id, n.tier_key as hot, d.tier_key as cold
  from newest n join modak.delta d on d.table_id = %(table_id)s and d.pk = n.pk
 where n.op = 0 and d.op = 0
 order by n.pk limit 1;

-- name: tidy_moves
-- A place that is the row's own says nothing.
update modak.delta set old_tier_key = null where table_id = %(table_id)s and old_tier_key = tier_key;

-- name: clear_captured
delete from modak.captured where table_id = %(table_id)s and partition_id = any(%(partition_ids)s);

-- name: current_transaction
select pg_current_xact_id()::text as xid;

-- name: has_delta
select 1 as found from modak.delta where table_id = %(table_id)s limit 1;

-- name: save_lake_columns
update modak.tables set lake_columns = %(lake_columns)s where table_id = %(table_id)s;

-- name: read_lake_columns
select lake_columns from modak.tables where table_id = %(table_id)s;

-- name: find_pin_below
select holder, expires_at from modak.read_pins
 where table_id = %(table_id)s and expires_at > now() and pinned_tier_key_hi < %(tier_key_hi)s
 order by expires_at desc limit 1;

-- name: find_advance_xid
-- The transaction that moved T past this partition; the last one, since T may have come back in between.
select (details->>'advance_xid')::bigint as xid from modak.op_log
 where table_id = %(table_id)s and op_kind = 'tiering' and phase = 'advanced'
   and (details->>'old_tier_key_hi')::bigint < %(tier_key_hi)s and (details->>'new_tier_key_hi')::bigint >= %(tier_key_hi)s
 order by (details->>'advance_xid')::bigint desc limit 1;

-- name: find_partition_id
select partition_id from modak.partitions
 where table_id = %(table_id)s and schema_name = %(schema_name)s and partition_name = %(partition_name)s and state <> 'dropped';

-- name: find_parent
select n.nspname::text as schema_name, c.relname::text as table_name
  from pg_inherits i join pg_class c on c.oid = i.inhparent join pg_namespace n on n.oid = c.relnamespace
 where i.inhrelid = %(oid)s::oid;

-- name: newest_advance
select max((details->>'advance_xid')::bigint) as xid from modak.op_log
 where table_id = %(table_id)s and op_kind = 'tiering' and phase = 'advanced';

-- name: find_pin_on_delta
select holder, expires_at from modak.read_pins
 where table_id = %(table_id)s and expires_at > now() and holds_delta
 order by expires_at desc limit 1;

-- name: find_pin_in_the_making
-- Transactions that have made a pin and are still open.
select a.application_name, l.pid
  from pg_locks l join pg_database d on d.oid = l.database left join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'advisory' and d.datname = current_database() and l.mode = 'ShareLock' and l.granted and l.objsubid = 1
   and l.classid = %(space)s::oid and l.objid = %(table_id)s::oid
 order by l.pid limit 1;

-- name: clear_fold
delete from modak.folded where op_id = %(op_id)s;

-- name: lowest_staged_key
select min(tier_key_lo) as lowest from modak.load_labels where table_id = %(table_id)s and state = 'staged';

-- name: forget_expired_partitions
delete from modak.partitions where table_id = %(table_id)s and state = 'dropped' and tier_key_hi <= %(retention_line)s;

-- name: forget_untiered
-- The range has partitions of its own again; the journal keeps what was.
delete from modak.partitions
 where table_id = %(table_id)s and state in ('dropped', 'tiered') and tier_key_hi > %(tier_key_hi)s and partition_id <> all(%(standing)s);

-- name: clear_untier
delete from modak.folded where table_id = %(table_id)s and starts_with(op_id, %(op_id)s || '/');

-- name: lowest_correction
select min(tier_key) as key from modak.delta where table_id = %(table_id)s and op = 0;

-- name: find_copied
select rows_total from modak.op_progress where op_id = %(op_id)s and task = %(task)s;

-- name: find_unfinished_untier
-- The last transaction that moved T down and whose cold side still reaches to where T was.
select max((details->>'advance_xid')::bigint) as xid from modak.op_log
 where table_id = %(table_id)s and op_kind = 'untier' and phase = 'advanced' and not details ? 'finished' having count(*) > 0;

-- name: finish_untiers
update modak.op_log set details = details || '{"finished": true}'
 where table_id = %(table_id)s and op_kind = 'untier' and phase = 'advanced' and not details ? 'finished';

-- name: list_staged
select label, version, spooled_rows, staged_files from modak.load_labels
 where table_id = %(table_id)s and state = 'staged' order by version limit %(limit)s;

-- name: oldest_staged_version
select min(version) as version from modak.load_labels where table_id = %(table_id)s and state = 'staged';

-- name: commit_labels
update modak.load_labels set state = 'committed', committed_at = now()
 where table_id = %(table_id)s and state = 'staged' and version = any(%(versions)s);

-- name: next_version
select nextval('modak.delta_version') as version;

-- name: list_spooled
select unnest(staged_files) as file from modak.load_labels where table_id = %(table_id)s;

-- name: list_seam_holders
-- Transactions that act on the line as it is, loads among them: from before they write their files until their label is there, or gone.
select distinct l.virtualtransaction as transaction
  from pg_locks l join pg_database d on d.oid = l.database
 where l.locktype = 'advisory' and d.datname = current_database() and l.mode = 'ShareLock' and l.granted and l.objsubid = 1
   and l.classid = %(space)s::oid and l.objid = %(table_id)s::oid;

-- name: list_published
-- Every S that was published, with the transaction that did it, the oldest first; and the metadata file its readers open.
select snapshot, (details->>'advance_xid')::bigint as xid, details->>'metadata_location' as metadata_location
  from modak.op_log
 where table_id = %(table_id)s and phase = 'advanced' and snapshot is not null and details ? 'advance_xid'
 order by 2;

-- name: list_named_metadata
-- Metadata files that the catalog itself names: of the published S, and of moments that several mirrors are read at.
select lake_props->>'metadata_location' as metadata_location from modak.cutline where table_id = %(table_id)s
union
select lake_props->>'metadata_location' from modak.mirror_tags where table_id = %(table_id)s;

-- name: oldest_pinned_snapshot
select min(pinned_lake_snapshot_id) as snapshot from modak.read_pins where table_id = %(table_id)s and expires_at > now();

-- name: prune_operations
-- Tiering stays: a partition that is not dropped yet is judged by it.
with old as (
    delete from modak.op_log o
     where o.table_id = %(table_id)s and o.phase in ('advanced', 'abandoned') and o.op_kind <> 'tiering'
       and o.updated_at < now() - make_interval(days => %(days)s)
       and (o.snapshot is null or o.snapshot < %(floor)s)
    returning 1
)
select count(*) as n from old;

-- name: save_lake_stats
insert into modak.lake_stats (table_id, stats, warnings, policy) values (%(table_id)s, %(stats)s, %(warnings)s, %(policy)s)
on conflict (table_id) do update set stats = excluded.stats, warnings = excluded.warnings, policy = excluded.policy, collected_at = now();

-- name: find_lake_stats
select stats, warnings, policy, collected_at from modak.lake_stats where table_id = %(table_id)s;

-- name: request_maintenance
insert into modak.maintenance_requests (table_id, requested_by) values (%(table_id)s, coalesce(%(requested_by)s, session_user))
on conflict (table_id) do update set requested_by = excluded.requested_by, requested_at = now()
returning requested_at;

-- name: claim_maintenance
-- After the pass, by whoever was alone on the table for its length: killed before, the request is still there. One that came meanwhile stays.
delete from modak.maintenance_requests where table_id = %(table_id)s and requested_at <= %(requested_at)s returning requested_by;

-- name: maintenance_is_done
select not exists (select from modak.maintenance_requests where table_id = %(table_id)s)
       and exists (select from modak.lake_stats where table_id = %(table_id)s and collected_at > %(since)s) as done;

-- name: list_unswept
-- Given up long enough ago that none of its tasks can still be writing.
select op_id, table_id, op_kind, phase, snapshot, details from modak.op_log
 where table_id = %(table_id)s and phase = 'abandoned' and not details ? 'swept'
   and updated_at < now() - make_interval(secs => %(seconds)s);
