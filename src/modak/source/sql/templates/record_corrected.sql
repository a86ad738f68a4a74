-- Rows of a partition whose key has a correction: they reach the lake through it. Minus the version that this snapshot sees stands for
-- "just after that correction": any later change of it, or any captured event, is newer.
insert into modak.captured (seq, table_id, partition_id, pk, op, tier_key, payload)
select -d.version, {table_id}, {partition_id}, {pk}, 0, {tier_key}, {image}
  from only {partition} r
  join modak.delta d on d.table_id = {table_id} and d.pk = {pk};
