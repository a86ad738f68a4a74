update modak.op_progress set rows_total = {rows}, updated_at = now() where op_id = {op_id} and task = {task};
