-- name: survey
-- Everything a cycle has to know of every table, in one look. ``activity`` changes with the heap's counters, its partitions, T, R and the
-- policy; ``delta`` with the counters of the table's corrections. Without counters (track_counts off) every look finds a change.
-- Three levels of partitions are counted, and not by recursion, of which Postgres expects millions of rows and plans for them.
with child as (
    select t.table_id, i.inhrelid from modak.tables t join pg_inherits i on i.inhparent = t.table_id::oid where t.enabled and (t.mode = 'tiered' or t.cold_build > 0)
), grandchild as (
    select c.table_id, i.inhrelid from child c join pg_inherits i on i.inhparent = c.inhrelid
), leaf as (
    select * from child
    union all
    select * from grandchild
    union all
    select g.table_id, i.inhrelid from grandchild g join pg_inherits i on i.inhparent = g.inhrelid
), written as (
    select table_id, count(*) as leaves, max(inhrelid::bigint) as newest,
           sum(pg_stat_get_tuples_inserted(inhrelid))::bigint as inserted, sum(pg_stat_get_tuples_updated(inhrelid))::bigint as updated
      from leaf group by table_id
), staged as (
    select table_id, count(*) as labels from modak.load_labels where state = 'staged' group by table_id
), tiered as (
    select table_id, count(*) as partitions from modak.partitions where state = 'tiered' group by table_id
), opened as (
    select table_id, count(*) as operations from modak.op_log where phase in ('flushing', 'committed') group by table_id
)
select t.table_id, t.schema_name, t.table_name, t.mode, t.mode = 'tiered' or t.cold_build > 0 as has_seam, t.tier_lag is not null as tiers, t.keep_heap as keeps_heap,
       t.lake_retention_lag is not null as retains,
       concat_ws(' ', w.leaves, w.newest, w.inserted, w.updated, c.tier_key_hi, c.retention_line, t.tier_lag, t.reclaim_lag,
                 t.lake_retention_lag, t.premake, t.keep_heap,
                 case when current_setting('track_counts') = 'off' then clock_timestamp() end) as activity,
       concat_ws(' ', d.oid, pg_stat_get_tuples_inserted(d.oid), pg_stat_get_tuples_updated(d.oid), pg_stat_get_tuples_deleted(d.oid),
                 case when d.oid is null or current_setting('track_counts') = 'off' then clock_timestamp() end) as delta,
       coalesce(s.labels, 0) as staged, coalesce(p.partitions, 0) as tiered, coalesce(o.operations, 0) as open_operations,
       q.table_id is not null as requested,
       t.maintenance_policy, c.lake_snapshot_id is not null as is_published, c.updated_at > k.collected_at as lake_changed,
       extract(epoch from now() - k.collected_at)::float8 as maintained_seconds
  from modak.tables t
  left join modak.cutline c using (table_id)
  left join written w using (table_id)
  left join staged s using (table_id)
  left join tiered p using (table_id)
  left join opened o using (table_id)
  left join modak.maintenance_requests q using (table_id)
  left join modak.lake_stats k using (table_id)
  left join pg_class d on d.relnamespace = 'modak'::regnamespace and d.relname = ('delta_' || t.table_id)::name
 where t.enabled
 order by t.schema_name, t.table_name;
