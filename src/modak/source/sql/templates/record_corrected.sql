-- Rows of a partition whose key has a correction: they reach the lake through it.
insert into modak.captured (seq, table_id, partition_id, pk, op, tier_key, payload)
select -nextval(pg_get_serial_sequence('modak.captured', 'seq')), {table_id}, {partition_id}, {pk}, 0, {tier_key}, {image}
  from only {partition} r
 where exists (select from modak.delta d where d.table_id = {table_id} and d.pk = {pk});
