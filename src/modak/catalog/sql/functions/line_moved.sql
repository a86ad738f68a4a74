-- A statement was planned before the cold side grew and looks after T moved: it would miss rows, so it fails and works when run again.
-- The argument keeps planning from calling this.
create or replace function modak.line_moved(line bigint) returns bigint
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'the cut-line moved while this statement was being planned' using errcode = '40001', hint = 'Run it again.';
end
$$;
