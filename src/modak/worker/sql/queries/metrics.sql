-- name: staged_backlog
-- Staged labels of every table, and for how long the oldest of them has waited.
select t.schema_name, t.table_name, count(l.label) as labels,
       coalesce(extract(epoch from now() - min(l.created_at)), 0)::float8 as lag_seconds,
       coalesce(min(pg_stat_get_live_tuples(d.oid)), 0)::float8 as delta_rows,
       coalesce(extract(epoch from now() - min(c.updated_at)), 0)::float8 as cutline_seconds
  from modak.tables t
  left join modak.cutline c on c.table_id = t.table_id
  left join pg_class d on d.relnamespace = 'modak'::regnamespace and d.relname = ('delta_' || t.table_id)::name
  left join modak.load_labels l on l.table_id = t.table_id and l.state = 'staged'
 group by t.table_id
