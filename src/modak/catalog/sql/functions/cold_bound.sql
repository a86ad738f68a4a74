-- How far the foreign tables of a table's cold side reach, as the planner of a statement sees it. Declared immutable so that planning
-- folds it into the plan: attaching another foreign table invalidates plans, and a plan keeps the bound it was made for.
create or replace function modak.cold_bound(p_table_id bigint) returns bigint
language plpgsql immutable parallel safe security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select t.cold_bound from modak.tables t where t.table_id = p_table_id);
end
$$;
