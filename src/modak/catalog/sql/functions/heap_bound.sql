-- Where T stood when a statement was planned, which then knows the heap's partitions from there on. Declared immutable so that planning
-- folds it into the plan: whatever moves T down changes a partition of the heap as well, and that invalidates plans. One that was being
-- made at that moment, and waited for the change with the partitions of before, is told apart by this.
create or replace function modak.heap_bound(p_table_id bigint) returns bigint
language plpgsql immutable parallel safe security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select c.tier_key_hi from modak.cutline c where c.table_id = p_table_id);
end
$$;
