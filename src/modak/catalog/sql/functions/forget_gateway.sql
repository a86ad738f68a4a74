-- The gateway that this catalog came with is another database's: forget where it is and by which password to log in. The next gateway that
-- starts here announces itself, and agrees on a new one.
create or replace function modak.forget_gateway() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from modak.gateway;
    -- Where nobody answers, and nobody is asked for estimates.
    alter server modak_gateway options (set host '127.0.0.1', set port '5439', set use_remote_estimate 'false');
    perform modak.new_gateway_password('modak_gateway');
end
$$;
