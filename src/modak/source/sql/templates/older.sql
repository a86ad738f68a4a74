-- Copies in the heap of the row whose key a cold row has just taken, at other tier keys: the insert replaced it, and they must not come back
-- when the table leaves Modak. T is held by then.
create or replace function modak.{function}(made {heap}) returns setof {heap}
language plpgsql
set search_path = pg_catalog, pg_temp
as $body$
-- A column of the table may be called as the variable is; all columns have their row before them here.
#variable_conflict use_variable
declare
    line bigint := (select s.tier_key_hi from modak.cutline s where s.table_id = {table_id});
begin
    if {canonical_made} < line then
        return query select h.* from {heap} h
                      where {heap_has_key} and h.{tier_key} <> made.{tier_key} and h.{tier_key} < {line_value};
    end if;
end
$body$;
