-- A correction whose row stands in the heap says of a new column what stands there.
update {relation} d set payload = d.payload || {image}
  from only {partition} h
 where d.table_id = {table_id} and d.op = 0 and d.pk = {pk};
