-- name: staged_backlog
-- Staged labels of every table, and for how long the oldest of them has waited.
select t.schema_name, t.table_name, count(l.label) as labels,
       coalesce(extract(epoch from now() - min(l.created_at)), 0)::float8 as lag_seconds
  from modak.tables t
  left join modak.load_labels l on l.table_id = t.table_id and l.state = 'staged'
 group by t.table_id
