-- A statement met a row that is not what it saw. Where it changed the row itself, as a join that meets a row twice does, it goes on without
-- it, as on a heap. What somebody else changed meanwhile a trigger cannot weigh anew, and overwriting it would lose it.
create or replace function modak.allow_own_change(p_table_id bigint, p_table text, maker xid) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if maker is null or not modak.is_own_change(maker) then
        raise exception 'could not serialize access due to concurrent update of table "%"', p_table
            using errcode = '40001', hint = 'Run the transaction again.';
    end if;
    if split_part(current_setting('modak.seen_' || p_table_id, true), ' ', 1) like '%+' then
        raise exception 'row of table "%" was already modified by an operation triggered by the current command', p_table
            using errcode = '27000', hint = 'Consider using an AFTER trigger instead of a BEFORE trigger to propagate changes to other rows.';
    end if;
end
$$;
