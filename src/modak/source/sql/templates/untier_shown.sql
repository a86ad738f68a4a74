-- The images whose place is in one of the new partitions.
insert into {staging} ({columns})
select {corrected}
  from modak.folded f join {delta} d on d.table_id = {table_id} and d.version = f.version
 where f.op_id = {round} and d.op = 0 and ({in_range});
