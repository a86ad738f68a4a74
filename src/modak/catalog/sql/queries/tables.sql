-- name: insert_table
insert into modak.tables
       (table_id, schema_name, table_name, primary_key_cols, tier_key_col, tier_key_type, partition_scheme, lake_table_ref,
        storage_profile, mode, surface, heap_name, view_name, text_cols, tier_lag, reclaim_lag, lake_retention_lag,
        heap_retention_lag, keep_heap, check_cold_keys, premake, original, cold_build, cold_bound, publication_name, slot_name,
        hybrid)
values (%(table_id)s, %(schema_name)s, %(table_name)s, %(primary_key_cols)s, %(tier_key_col)s, %(tier_key_type)s, %(partition_scheme)s,
        %(lake_table_ref)s, %(storage_profile)s, %(mode)s, %(surface)s, %(heap_name)s, %(view_name)s, %(text_cols)s, %(tier_lag)s,
        %(reclaim_lag)s, %(lake_retention_lag)s, %(heap_retention_lag)s, %(keep_heap)s, %(check_cold_keys)s, %(premake)s,
        %(original)s, %(cold_build)s, %(cold_bound)s, %(publication_name)s, %(slot_name)s,
        %(hybrid)s);

-- name: insert_cutline
insert into modak.cutline (table_id, tier_key_hi, lake_props) values (%(table_id)s, %(tier_key_hi)s, %(lake_props)s);

-- name: insert_partition
insert into modak.partitions (table_id, partition_id, schema_name, partition_name, tier_key_lo, tier_key_hi)
values (%(table_id)s, %(partition_id)s, %(schema_name)s, %(partition_name)s, %(tier_key_lo)s, %(tier_key_hi)s)
on conflict (table_id, partition_id) do nothing;

-- name: find_table
select * from modak.tables where schema_name = %(schema_name)s and table_name = %(table_name)s;

-- name: find_renamed_table
select t.* from modak.tables t join pg_class c on c.oid = t.table_id::oid join pg_namespace n on n.oid = c.relnamespace
 where t.mode = 'mirrored' and t.cold_build = 0 and n.nspname = %(schema_name)s and c.relname = %(table_name)s;

-- name: find_table_by_relation
select schema_name, table_name from modak.tables
 where schema_name = %(schema_name)s and %(name)s in (table_name, heap_name, view_name);

-- name: list_tables
select * from modak.tables order by schema_name, table_name;

-- name: delete_table
with folded as (delete from modak.folded where table_id = %(table_id)s)
delete from modak.tables where table_id = %(table_id)s;

-- name: update_policy
update modak.tables
   set tier_lag = %(tier_lag)s, reclaim_lag = %(reclaim_lag)s, lake_retention_lag = %(lake_retention_lag)s,
       heap_retention_lag = %(heap_retention_lag)s, premake = %(premake)s, enabled = %(enabled)s,
       maintenance_policy = %(maintenance_policy)s, keep_heap = %(keep_heap)s, hybrid = %(hybrid)s,
       wal_limit = %(wal_limit)s
 where table_id = %(table_id)s;

-- name: set_names_aside
-- Names are unique at each row's turn, and two tables may have swapped theirs.
update modak.tables set table_name = table_name || '/' || table_id where table_id = any (%(ids)s);

-- name: save_names
update modak.tables t
   set schema_name = n.schema_name, table_name = n.table_name, heap_name = n.table_name, view_name = n.table_name
  from unnest(%(ids)s::bigint[], %(schemas)s::text[], %(names)s::text[]) as n(table_id, schema_name, table_name)
 where t.table_id = n.table_id;

-- name: save_columns
update modak.tables
   set primary_key_cols = %(primary_key_cols)s, tier_key_col = %(tier_key_col)s, text_cols = %(text_cols)s, original = %(original)s
 where table_id = %(table_id)s;

-- name: save_surface
with line as (update modak.cutline set tier_key_hi = %(tier_key_hi)s where table_id = %(table_id)s)
update modak.tables
   set surface = %(surface)s, heap_name = %(heap_name)s, view_name = %(view_name)s, heap_retention_lag = %(heap_retention_lag)s,
       original = %(original)s, cold_build = %(cold_build)s, cold_bound = %(cold_bound)s
 where table_id = %(table_id)s;

-- name: save_cold_side
update modak.tables set cold_build = %(cold_build)s, cold_bound = %(cold_bound)s where table_id = %(table_id)s;

-- name: read_cutline
select tier_key_hi, lake_snapshot_id, replicated_lsn, retention_line, lake_props from modak.cutline where table_id = %(table_id)s;

-- name: list_catalog_partitions
select partition_id, schema_name, partition_name, tier_key_lo, tier_key_hi, state, row_count, state_changed_at
  from modak.partitions where table_id = %(table_id)s
 order by tier_key_lo, tier_key_hi, partition_name;

-- name: list_partitions_of
select table_id, schema_name, partition_name, tier_key_lo, tier_key_hi, state, row_count
  from modak.partitions where table_id = any (%(ids)s)
 order by tier_key_lo, tier_key_hi, partition_name;

-- name: count_delta
select count(*) as n from modak.delta where table_id = %(table_id)s;

-- name: count_pins
select count(*) as n from modak.read_pins where table_id = %(table_id)s and expires_at > now();

-- name: count_staged
select count(*) as n from modak.load_labels where table_id = %(table_id)s and state = 'staged';

-- name: list_status
select s.*, t.tier_key_type from modak.status s join modak.tables t using (table_id) order by schema_name, table_name;

-- name: read_catalog_id
select catalog_id from modak.schema_meta;

-- name: count_open_operations
select count(*) as n from modak.op_log where table_id = %(table_id)s and phase in ('flushing', 'committed');

-- name: pin_snapshot
-- A gateway's pin holds a lake snapshot only. The heap's side is guarded by the reader's own transaction, so no partition waits for it:
-- its T lies above every other.
insert into modak.read_pins (table_id, pinned_lake_snapshot_id, pinned_tier_key_hi, expires_at, holder, holds_delta)
select c.table_id, %(sequence_number)s, 9223372036854775807, now() + make_interval(secs => %(seconds)s), 'gateway', false
  from modak.cutline c where c.table_id = %(table_id)s
returning pin_id;

-- name: renew_pin
update modak.read_pins set expires_at = now() + make_interval(secs => %(seconds)s) where pin_id = %(pin_id)s;

-- name: release_pin
delete from modak.read_pins where pin_id = %(pin_id)s;

-- name: read_access_token
select token from modak.gateway_access;

-- name: save_gateway_verifier
insert into modak.gateway (verifier) values (%(verifier)s)
on conflict (singleton) do update set verifier = excluded.verifier, updated_at = now();
