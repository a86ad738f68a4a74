-- Count and digest of each bucket of rows in a range of tier keys, without the rows that the delta speaks for.
select {bucket} as bucket, count(*) as n, sum({digest}) as digest
  from {source} r
 where {key} >= {low} and {key} < {high}
   and not exists (select from modak.delta d where d.table_id = {table_id} and d.pk = {pk})
 group by 1;
