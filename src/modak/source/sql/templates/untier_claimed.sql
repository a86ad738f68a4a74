-- The mark of a task that copies: in the transaction of its rows, so that a second attempt waits for the first and then finds it done.
insert into modak.op_progress (op_id, task) values ({op_id}, {task});
