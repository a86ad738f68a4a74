-- Rows of a partition whose key has a tombstone: they reach the lake through it. Minus the version that this snapshot sees stands for
-- "just after that correction": any captured event is newer. A key that has an image as well is two rows', and one is answered.
with met as materialized (
    select {pk} as pk, {tier_key} as tier_key, {image} as image, d.op, d.version, d.tier_key as cold
      from only {partition} r
      join modak.delta d on d.table_id = {table_id} and d.pk = {pk}
), recorded as (
    insert into modak.captured (seq, table_id, partition_id, pk, op, tier_key, payload)
    select -m.version, {table_id}, {partition_id}, m.pk, 0, m.tier_key, m.image from met m where m.op = 1
)
select m.pk, m.tier_key as hot, m.cold from met m where m.op = 0 order by m.pk limit 1;
