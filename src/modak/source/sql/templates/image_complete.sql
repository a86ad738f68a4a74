-- A row image knows every column; those that came after it are NULL.
update {relation} d set payload = {empty} || d.payload
 where d.table_id = {table_id} and d.op = 0 and not d.payload ?& {names}::text[];
