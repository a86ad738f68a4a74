-- name: lift_partitions
-- A number below zero belongs to no partition that stands.
update modak.partitions set partition_id = -abs(partition_id) where table_id = %(table_id)s;

-- name: forget_captured
-- Every pass that was under way is undone, so nobody will ask for these.
delete from modak.captured where table_id = %(table_id)s;

-- name: seat_partition
update modak.partitions set partition_id = %(new)s where table_id = %(table_id)s and partition_id = %(lifted)s;

-- name: list_lifted
select partition_id, schema_name, partition_name, state from modak.partitions where table_id = %(table_id)s and partition_id < 0;

-- name: renumber_transactions
-- Transactions of another server have numbers that mean nothing here. Whoever could see what those made unreachable is gone.
update modak.op_log set details = details || jsonb_build_object('advance_xid', pg_current_xact_id()::text::bigint)
 where table_id = %(table_id)s and details ? 'advance_xid';

-- name: rewrite_operation
update modak.op_log set details = %(details)s where op_id = %(op_id)s;

-- name: write_original
update modak.tables set original = %(original)s where table_id = %(table_id)s;

-- name: write_slot
update modak.tables set slot_name = %(slot_name)s where table_id = %(table_id)s;

-- name: drop_pins
delete from modak.read_pins;

-- name: count_all_pins
select count(*) as n from modak.read_pins;

-- name: has_gateway_password
select exists (select from modak.gateway) as found;

-- name: forget_gateway
select modak.forget_gateway();

-- name: republish_pointer
update modak.cutline set lake_props = lake_props || jsonb_build_object('metadata_location', %(metadata_location)s::text)
 where table_id = %(table_id)s;

-- name: point_iceberg_table
update modak_lake.iceberg_tables
   set previous_metadata_location = metadata_location, metadata_location = %(metadata_location)s
 where catalog_name = %(catalog)s and table_namespace = %(namespace)s and table_name = %(name)s;

-- name: mark_restored
-- What an open operation knows of transactions and snapshots is another server's: it is undone, whatever the lake has of it.
update modak.op_log set details = details || '{"restored": true}'
 where table_id = %(table_id)s and phase in ('flushing', 'committed');

-- name: forget_moments
-- Places in the WAL of another server.
delete from modak.mirror_tags where table_id = %(table_id)s;
