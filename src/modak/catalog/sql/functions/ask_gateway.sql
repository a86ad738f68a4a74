-- What the gateway says to a query of the current role. p_path: the schemas that its names are looked up in, as JSON.
create or replace function modak.ask_gateway(p_kind text, p_sql text, p_path text) returns setof text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Hexadecimal digits: postgres_fdw writes strings with backslashes in a way of its own, and a query is full of quotes.
    hex_sql text := encode(convert_to(p_sql, 'UTF8'), 'hex');
    -- With what the session chose about mirrored tables, so that the gateway chooses the same for it.
    hex_path text := encode(convert_to(concat(p_path, chr(31), current_setting('modak.mirrored_reads', true), chr(31),
                                              current_setting('modak.mirrored_wait', true)), 'UTF8'), 'hex');
begin
    return query select g.vals from modak.gateway_answers g where g.kind = p_kind and g.sql = hex_sql and g.path = hex_path;
end
$$;
