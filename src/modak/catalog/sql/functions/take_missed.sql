-- The rows that the statement which ends now has noted as missed, and no trace of them left.
create or replace function modak.take_missed(p_table_id bigint) returns setof jsonb
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    setting text := modak.missed_setting(p_table_id);
    full_ones integer := coalesce(nullif(current_setting(setting || '_full', true), '')::integer, 0);
    piece text;
begin
    foreach piece in array array(select setting || '_' || n from generate_series(1, full_ones) n) || setting loop
        return query select line::jsonb from string_to_table(current_setting(piece, true), E'\n') line where line <> '';
        perform set_config(piece, '', true);
    end loop;
    if full_ones > 0 then
        perform set_config(setting || '_full', '', true);
    end if;
    if setting like '%\_1' then
        perform set_config('modak.missed_' || p_table_id, '', true);
    end if;
end
$$;
