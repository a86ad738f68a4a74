-- Heap rows whose correction says something else, a page of them.
select {pk} as pk, {image}::text as heap, case d.op when 0 then d.payload::text else 'removed' end as delta
  from {source} r
  join modak.delta d on d.table_id = {table_id} and d.pk = {pk}
 where (d.op <> 0 or d.payload is distinct from {image}) and {key} >= {low} and {key} < {high} and ({after}::text is null or d.pk > {after})
 order by d.pk
 limit {limit};
