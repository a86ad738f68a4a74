-- A correction stands for its key, wherever the lake has it: the copy of the lake's row goes.
delete from {staging} s
 using modak.folded f, {delta} d
 where f.op_id = {round} and d.table_id = {table_id} and d.version = f.version
   and {same_key} and {pk} = d.pk;
