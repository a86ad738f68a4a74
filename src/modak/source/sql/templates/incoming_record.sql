-- Corrections that a newer file replaces. What comes after this statement is newer than every file, and stays on top.
insert into modak.folded (op_id, version, table_id)
select distinct {op_id}, d.version, {table_id}
  from {incoming} i join {delta} d on d.table_id = {table_id} and d.pk = {pk}
 where d.version < i.version;
