-- At the end of a statement, for rows that it saw and then did not find any more: were they deleted, or do they live on under another key?
-- STABLE is the point of this function: its queries look through the snapshot of the statement itself, which still shows the rows, and with them
-- who took them away and what came after them. Statements nest; each looks after the rows that were noted in its own turn.
-- What cannot be told here modak.ask_missed asks, which fires next.
create or replace function modak.{function}() returns trigger
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
#variable_conflict use_variable
declare
    one jsonb;
    gone {heap};
    seen record;
    row_version text;
    asked text[] := array[]::text[];
    versions tid[] := array[]::tid[];
    is_watched boolean;
begin
    if coalesce(current_setting({missed}, true), '') = '' then
        return null;
    end if;
    is_watched := strpos(coalesce(current_setting({watched}, true), ''), modak.missed_setting({table_id}) || ' ') > 0;
    for one in select t.note from modak.take_missed({table_id}) t(note) loop
        gone := (one ->> 'row')::{heap};
        select h.tableoid as place, h.ctid as version, h.xmax as maker into seen from {heap} h where {is_gone} limit 1;
        if not found then
            -- Only the lake had it, or a correction: whoever deletes such a row says so.
            if one ->> 'verdict' <> 'deleted' then
                perform modak.allow_own_change({table_id}, {table_text}, null);
            end if;
        elsif modak.is_own_change(seen.maker) then
            if (one ->> 'nested')::boolean then
                perform modak.allow_own_change({table_id}, {table_text}, seen.maker);
            end if;
        elsif not modak.was_deleted(seen.place, seen.version, one ->> 'met') then
            row_version := concat(seen.place, seen.version);
            -- There is a newer version, or the statement waited for nobody before the row went.
            if not is_watched or not modak.was_deleted(seen.place, seen.version, row_version) then
                perform modak.allow_own_change({table_id}, {table_text}, null);
            end if;
            asked := asked || row_version;
            versions := versions || seen.version;
        end if;
    end loop;
    if asked <> array[]::text[] then
        perform set_config({asked}, asked::text, true), set_config({versions}, versions::text, true);
    end if;
    return null;
end
$body$;
