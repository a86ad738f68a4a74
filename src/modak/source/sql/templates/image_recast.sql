-- A value of a row image goes the way of the heap's: read as what it was, converted, written as what it is now.
update {relation} d set payload = d.payload || jsonb_build_object({column}, {image})
 where d.table_id = {table_id} and d.payload ? {column};
