-- Heap rows whose correction says something else.
select {pk} as pk, {image}::text as heap, case d.op when 0 then d.payload::text else 'removed' end as delta
  from {source} r
  join modak.delta d on d.table_id = {table_id} and d.pk = {pk}
 where (d.op <> 0 or d.payload is distinct from {image}) and {key} >= {low} and {key} < {high}
 limit {limit};
