-- A statement has written a row and left it as it was: from this command on, a row that is its own work is not written again, though nothing
-- shows that it was. Noted in the statement's own entry of the stack that modak.note_line keeps.
create or replace function modak.note_unchanged(p_table_id bigint, command cid) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    setting text := 'modak.seen_' || p_table_id;
begin
    perform set_config(setting, regexp_replace(current_setting(setting), '^([^/ ]*/[^/ ]*/)', '\1' || command), true);
end
$$;
