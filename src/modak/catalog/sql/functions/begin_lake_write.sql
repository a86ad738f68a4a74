-- Before every statement that writes to a decoupled table. postgres_fdw says nothing of who writes, so this does.
create or replace function modak.begin_lake_write() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- What the foreign table's options say; after a restore it is not its OID.
    number bigint := (select substring(o from 'table_name=(\d+)')::bigint from pg_foreign_table f, unnest(f.ftoptions) o
                       where f.ftrelid = tg_relid and o like 'table\_name=%');
    -- Rows that the statement's client has left at the gateway's port; see modak.gateway.relay.bulk. Whoever makes up a number gets nothing.
    parcel text := current_setting('modak.parcel', true);
    hex_request text;
begin
    if pg_is_in_recovery() then
        raise exception 'cannot write to "%.%" on a standby', tg_table_schema, tg_table_name
            using errcode = 'read_only_sql_transaction', hint = 'Write on the primary; reading is possible here.';
    end if;
    perform modak.begin_lake_transaction(number, tg_op);
    if parcel <> '' and tg_op = 'INSERT' then
        hex_request := encode(convert_to(jsonb_build_object('id', parcel, 'table_id', number)::text, 'UTF8'), 'hex');
        perform o.answer from modak.gateway_orders o where o.verb = 'parcel' and o.request = hex_request;
    end if;
    return null;
end
$$;
