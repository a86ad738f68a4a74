-- A cold row has just taken a key, and stands at own_version of own_place. Copies in the heap of the row that had it, at other tier keys, or
-- beside it where no unique index keeps them apart: the insert replaced it, and they must not come back when the new row goes or the table
-- leaves Modak. A hot row that has the key is not replaced: 23505. T is held by then.
-- Hot rows are looked for where an index of the heap leads to them; without one each late row would read them all. Tiering then refuses what
-- shares a key.
create or replace function modak.{function}(made {heap}, own_place oid, own_version tid) returns table (place oid, version tid)
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
        return query
            with copies as (
                select h.tableoid as place, h.ctid as version, h.xmin as maker, h.cmin as command
                  from {heap} h where {heap_has_key} and h.{tier_key} < {line_value}
            ), own as (
                select c.* from copies c where c.place = own_place and c.version = own_version
            )
            select c.place, c.version from copies c left join own o on true
             where (c.place <> own_place or c.version <> own_version)
               -- What the same statement inserted after the row has its own turn.
               and (c.place = o.place and c.maker = o.maker and c.command = o.command and c.version > o.version) is not true;
    end if;
end
$body$;
