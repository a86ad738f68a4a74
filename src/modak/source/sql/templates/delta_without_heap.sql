-- Corrections of a range that add or replace a row, without that row in the heap, a page of them.
select d.pk, d.payload::text as delta, d.version
  from modak.delta d
 where d.table_id = {table_id} and d.op = 0 and d.tier_key >= {low} and d.tier_key < {high} and ({after}::text is null or d.pk > {after})
   and not exists (select from {source} r where {pk} = d.pk)
 order by d.pk
 limit {limit};
