-- The rows of a small range with their digests, without those that the delta speaks for.
select {key_text} as key_text, {digest} as digest
  from {source} r
 where {key} >= {low} and {key} < {high} and {within}
   and not exists (select from modak.delta d where d.table_id = {table_id} and d.pk = {pk});
