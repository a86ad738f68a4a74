-- On the spill and on tiered partitions, twice: before the row's own correction is written, and after it. After the insert, not before it: ON
-- CONFLICT must find a spilled row first, and then inserts none.
-- Before: an INSERT is refused where the registration asks for that. After: it has replaced the row otherwise, whose copies go. The
-- correction made a second writer of the key wait for the first, so that he sees the first one's row.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
as $body$
declare
    older pg_catalog.record;
    folding pg_catalog.text;
    path pg_catalog.text;
begin
    if tg_op OPERATOR(pg_catalog.=) 'UPDATE' and pg_catalog.record_image_eq(row({old_keys}), row({new_keys})) then
        return null;
    end if;
    if tg_argv[0] OPERATOR(pg_catalog.<>) 'older' then
        if tg_op OPERATOR(pg_catalog.=) 'UPDATE' or tg_argv[0] OPERATOR(pg_catalog.=) 'check' then
            perform modak.{taken}(row({new_columns})::{heap}, false);
        end if;
        return null;
    end if;
    for older in select o.place, o.version from modak.{older}(row({new_columns})::{heap}, tg_relid, new.ctid) o loop
        -- So that the triggers beside this one do not take it for a deletion by the user.
        folding := pg_catalog.current_setting('modak.folding', true);
        perform pg_catalog.set_config('modak.folding', '{table_id}', true);
        if modak.guards_triggers({table_id}) then
            path := pg_catalog.current_setting('search_path');
            perform pg_catalog.set_config('search_path', modak.guarded_path(pg_catalog.current_schemas(false)), true);
        end if;
        delete from {heap} h where h.tableoid OPERATOR(pg_catalog.=) older.place and h.ctid OPERATOR(pg_catalog.=) older.version;
        if path is not null then
            perform pg_catalog.set_config('search_path', path, true);
        end if;
        perform pg_catalog.set_config('modak.folding', coalesce(folding, ''), true);
    end loop;
    return null;
end
$body$;
