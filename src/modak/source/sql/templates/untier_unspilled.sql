-- From the line on rows stand in partitions of their own; a key that moved there leaves nothing behind in the spill.
delete from {spill} s
 where {key} >= {line} or {pk} in (select d.pk from {delta} d where d.table_id = {table_id} and d.tier_key >= {line});
