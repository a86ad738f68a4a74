-- Make the session of a replication worker fit for its next transactions, whatever the database's own settings are. With repeatable read as their
-- default, each that had to wait for the node's lock would fail: the worker starts again some seconds later, and its node looks dead meanwhile.
create or replace function modak.settle_applying() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('default_transaction_isolation') <> 'read committed' then
        perform set_config('default_transaction_isolation', 'read committed', false);
    end if;
end
$$;
