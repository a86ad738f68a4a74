-- A correction that was made anew since the fold read it has another version, and stays. It says where the lake held the row before the
-- fold; now the row is where the fold put it, and the next fold must look for it there.
with gone as (
    delete from {delta} d using modak.folded f
     where f.op_id = {op_id} and d.table_id = {table_id} and d.version = f.version{kept}
    returning d.pk, d.op
), anew as (
    update {delta} d set old_tier_key = nullif(f.tier_key, d.tier_key), placed = true
      from modak.folded f
     where f.op_id = {op_id} and d.table_id = {table_id} and d.pk = f.pk and d.version <> f.version
){removed}
select count(*) as n from gone;
