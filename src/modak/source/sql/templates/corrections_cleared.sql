-- A correction that was made anew since the fold read it has another version, and stays.
with gone as (
    delete from {delta} d using modak.folded f
     where f.op_id = {op_id} and d.table_id = {table_id} and d.version = f.version
    returning d.pk, d.op
){removed}
select count(*) as n from gone;
