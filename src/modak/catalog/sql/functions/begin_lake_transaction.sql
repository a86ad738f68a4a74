-- Tell the gateway which transaction its work belongs to: after a crash pg_xact_status says what became of it. As the catalog's owner, because
-- only he reads the foreign table; the name cannot be made up, since it is this transaction's own.
create or replace function modak.begin_lake_transaction(p_table_id bigint, p_operation text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A name is only given to who writes, and a standby gives none.
    named jsonb := jsonb_build_object('xid', pg_current_xact_id()::text, 'isolation', current_setting('transaction_isolation'),
                                      'table_id', p_table_id, 'operation', p_operation);
    hex_request text := encode(convert_to(named::text, 'UTF8'), 'hex');
begin
    perform modak.check_lake_owner();
    -- Postgres must not forget after a crash what it told the client: a transaction that changes nothing of Postgres's own writes no WAL, and one
    -- without WAL, or one that does not care, is acknowledged before it is on disk. The lake would then take it back.
    perform pg_logical_emit_message(true, 'modak', '');
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'local', true);
    end if;
    perform o.answer from modak.gateway_orders o where o.verb = 'begin' and o.request = hex_request;
end
$$;
