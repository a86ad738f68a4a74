-- Corrections of a range that add or replace a row, without that row in the heap.
select d.pk, d.payload::text as delta
  from modak.delta d
 where d.table_id = {table_id} and d.op = 0 and d.tier_key >= {low} and d.tier_key < {high}
   and not exists (select from {source} r where {pk} = d.pk)
 limit {limit};
