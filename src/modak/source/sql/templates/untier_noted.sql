-- Corrections that no earlier round has brought to the new partitions, by version: whatever is corrected again has another one.
insert into modak.folded (op_id, version, table_id)
select {round}, d.version, {table_id} from {delta} d
 where d.table_id = {table_id}
   and not exists (select from modak.folded f
                    where f.table_id = {table_id} and starts_with(f.op_id, {operation}) and f.version = d.version);
