-- Row images forget columns that are gone; a later column of the same name is another one.
update {relation} d set payload = d.payload - {names}::text[] where d.table_id = {table_id} and d.payload ?| {names}::text[];
