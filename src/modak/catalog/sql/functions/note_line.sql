-- Before an UPDATE or DELETE through a view, or a COPY, note which seam it sees; after it, forget that again. STABLE is the point of this function:
-- its query looks through the snapshot of the statement itself, as no query of a row trigger can.
-- Statements nest, so the setting is a stack, newest first. A rollback to a savepoint restores it. An entry is revision/T/command/marks:
-- the command since when rows were written and left as they were (modak.note_unchanged); ! says that the heap has triggers which may change
-- rows before the statement comes to them, ? that these have to be kept from the caller (modak.guards_triggers), + that another statement ran
-- inside.
create or replace function modak.note_line() returns trigger
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    setting text := 'modak.seen_' || tg_argv[0];
    stack text := coalesce(current_setting(setting, true), '');
    ends integer;
begin
    if tg_when = 'BEFORE' then
        stack := concat(
            (select concat(c.revision, '/', c.tier_key_hi) from modak.cutline c where c.table_id = tg_argv[0]::bigint),
            case when exists (
                select from pg_trigger t
                 where t.tgrelid = tg_argv[0]::oid and t.tgenabled <> 'D' and t.tgname <> 'modak_newcomer'
                   and (not t.tgisinternal or t.tgfoid in (
                       '"RI_FKey_cascade_del"'::regproc, '"RI_FKey_cascade_upd"'::regproc, '"RI_FKey_setnull_del"'::regproc,
                       '"RI_FKey_setnull_upd"'::regproc, '"RI_FKey_setdefault_del"'::regproc, '"RI_FKey_setdefault_upd"'::regproc))
            ) then '//!' else '//' end,
            case when modak.guards_triggers(tg_argv[0]::bigint) then '? ' else ' ' end, stack);
    else
        stack := substr(stack, strpos(stack, ' ') + 1);
        ends := strpos(stack, ' ');
        if ends > 1 and substr(stack, ends - 1, 1) <> '+' then
            stack := concat(left(stack, ends - 1), '+', substr(stack, ends));
        end if;
    end if;
    perform set_config(setting, stack, true);
    return null;
end
$$;
