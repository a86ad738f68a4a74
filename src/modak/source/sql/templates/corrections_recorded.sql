-- Under the snapshot in which the tasks read them.
insert into modak.folded (op_id, version, table_id, pk, tier_key)
select {op_id}, d.version, {table_id}, {place_of} from {delta} d where d.table_id = {table_id} and d.version <= {upto} and {fits};
