-- Note a row that a statement saw and did not find, for the end of the statement. Very many come together where a join meets rows again that
-- it has deleted: so notes are kept in pieces, and each is written over a short text only.
create or replace function modak.note_missed(p_table_id bigint, p_table text, note jsonb) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    piece_bytes_max constant integer := 30000;
    pieces_max constant integer := 10000;
    setting text := modak.missed_setting(p_table_id);
    piece text := coalesce(current_setting(setting, true), '');
    full_ones integer;
begin
    if length(piece) > piece_bytes_max then
        full_ones := coalesce(nullif(current_setting(setting || '_full', true), '')::integer, 0) + 1;
        if full_ones > pieces_max then
            raise exception 'a statement on table "%" meets too many rows again that it has deleted or moved', p_table
                using errcode = '54000', hint = 'Let its join meet each row once.';
        end if;
        perform set_config(setting || '_' || full_ones, piece, true), set_config(setting || '_full', full_ones::text, true);
        piece := '';
    end if;
    -- A text in JSON has no line breaks of its own.
    perform set_config(setting, concat(piece, note, E'\n'), true), set_config('modak.missed_' || p_table_id, 'yes', true);
end
$$;
