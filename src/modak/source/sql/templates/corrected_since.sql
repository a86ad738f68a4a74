-- Whether there is any correction to look at, before whole partitions are.
select exists (select from {delta} d where d.table_id = {table_id} and d.op = 0 and age(d.xmin) <= age({since}::xid)) as found;
