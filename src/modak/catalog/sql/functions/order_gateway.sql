-- What the gateway answers to an order about a decoupled table. It is carried out with the transaction that asks: a rollback undoes it.
create or replace function modak.order_gateway(p_verb text, p_request jsonb) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Hexadecimal digits: postgres_fdw writes strings with backslashes in a way of its own, and JSON is full of them.
    hex_request text := encode(convert_to(p_request::text, 'UTF8'), 'hex');
    said text;
begin
    if pg_is_in_recovery() then
        raise exception 'this server is a standby: decoupled tables are made and dropped on the primary'
            using errcode = 'read_only_sql_transaction', hint = 'Connect to the primary. Nothing was changed.';
    end if;
    if p_verb not in ('describe', 'list', 'compare') then
        perform modak.check_lake_owner();
    end if;
    -- Apart from the order itself, so that the order does not run in a savepoint of ours.
    begin
        perform o.answer from modak.gateway_orders o where o.verb = 'greet' and o.request = '7b7d';
    exception when sqlclient_unable_to_establish_sqlconnection then
        raise exception 'no gateway answers for this database, and only a gateway reaches the lake'
            using errcode = 'sqlclient_unable_to_establish_sqlconnection', detail = sqlerrm,
                  hint = 'Start one with `modak gateway` or `modak up`, and try again. Nothing was changed.';
    end;
    if p_verb not in ('describe', 'list', 'compare') then
        perform modak.begin_lake_transaction((p_request->>'table_id')::bigint, p_verb);
    end if;
    select o.answer into strict said from modak.gateway_orders o where o.verb = p_verb and o.request = hex_request;
    return said::jsonb;
end
$$;
