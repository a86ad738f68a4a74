-- After modak.missed_…, for rows that are gone and of which it could not tell whether they were deleted: they are locked through the cursors that
-- the table's modak.watch_… has opened before the statement waited. A deleted row is passed over, a moved one refused by Postgres (40001).
-- As the caller, and with nothing of ours: whoever makes up a cursor under that name fetches from it with no rights but his own.
create or replace function modak.ask_missed() returns trigger
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    stack text := coalesce(current_setting('modak.seen_' || tg_argv[0], true), '');
    place text := format('modak.missed_%s_%s ', tg_argv[0], length(stack) - length(replace(stack, ' ', '')));
    watched text := coalesce(current_setting('modak.watched_' || tg_argv[0], true), '');
    asked text := coalesce(current_setting('modak.asked_' || tg_argv[0], true), '');
    locking refcursor := rtrim(place) || '_lock';
    looking refcursor := rtrim(place) || '_look';
    known bigint;
    version tid;
begin
    if strpos(watched, place) = 0 then
        return null;
    end if;
    if asked <> '' then
        fetch looking into known;
        fetch locking into version;
        -- One stands there after all, or was gone before the cursors were opened.
        if found or known <> (select count(distinct a) from unnest(asked::text[]) a) then
            raise exception 'could not serialize access due to concurrent update of table "%.%"', tg_table_schema, tg_table_name
                using errcode = '40001', hint = 'Run the transaction again.';
        end if;
        perform set_config('modak.asked_' || tg_argv[0], '', true), set_config('modak.versions_' || tg_argv[0], '', true);
    end if;
    close locking;
    close looking;
    perform set_config('modak.watched_' || tg_argv[0], replace(watched, place, ''), true);
    return null;
end
$$;
