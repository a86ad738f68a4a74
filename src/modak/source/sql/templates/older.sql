-- A cold row has just taken a key. Copies in the heap of the row that had it, at other tier keys: the insert replaced it, and they must not
-- come back when the table leaves Modak. A hot row that has the key is not replaced: 23505. T is held by then.
-- Hot rows are looked for where an index of the heap leads to them; without one each late row would read them all. Tiering then refuses what
-- shares a key.
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
        if {key_is_anywhere} and {key_is_indexed} and exists (select from {heap} h where {heap_has_key} and h.{tier_key} >= {line_value}) then
            raise exception 'duplicate key value violates unique constraint on (%) of table "%"', {key_text}, {table_text}
                using errcode = '23505', detail = format('Key (%s)=(%s) already exists.', {key_text}, concat_ws(', ', {made_keys})),
                      hint = 'The row is hot. UPDATE it, or use modak_upsert.', schema = {schema_text}, table = {name_text};
        end if;
        return query select h.* from {heap} h
                      where {heap_has_key} and h.{tier_key} <> made.{tier_key} and h.{tier_key} < {line_value};
    end if;
end
$body$;
