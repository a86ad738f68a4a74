-- Under the snapshot in which the tasks read them.
insert into modak.folded (op_id, version, table_id)
select {op_id}, d.version, {table_id} from {delta} d where d.table_id = {table_id} and d.version <= {upto} and {fits};
