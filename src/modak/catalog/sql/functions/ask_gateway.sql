-- What the gateway says to a query of the session's role. The role cannot be made up: it is what the session logged in as or has set.
-- As the catalog's owner, because only he reads the foreign table.
create or replace function modak.ask_gateway(p_kind text, p_sql text, p_path text) returns setof text[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking text := case when current_setting('role') = 'none' then session_user else current_setting('role') end;
    -- Hexadecimal digits: postgres_fdw writes strings with backslashes in a way of its own, and a query is full of quotes.
    hex_sql text := encode(convert_to(p_sql, 'UTF8'), 'hex');
    hex_caller text := encode(convert_to(asking, 'UTF8'), 'hex');
    hex_path text := encode(convert_to(p_path, 'UTF8'), 'hex');
begin
    return query select g.vals from modak.gateway_query g
                  where g.kind = p_kind and g.sql = hex_sql and g.caller = hex_caller and g.path = hex_path;
end
$$;
