-- Another password for Postgres's own connections to its gateway, in the user mapping of everybody. Made here: as a statement of a client it
-- would stand in the server's log, and among the statements that pg_stat_statements keeps.
create or replace function modak.new_gateway_password(user_name text) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    password text := replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '');
begin
    drop user mapping if exists for public server modak_gateway;
    execute format('create user mapping for public server modak_gateway options (user %L, password %L)', user_name, password);
    return password;
end
$$;
