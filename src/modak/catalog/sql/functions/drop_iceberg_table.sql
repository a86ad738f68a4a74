-- Drop a decoupled table. The Iceberg table goes from its catalog when the transaction commits, and its files with purge only.
-- One that was attached stays in its catalog, unless purge is asked for.
create or replace function modak.drop_iceberg_table(schema_name text, table_name text, purge boolean default false) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    place text := format('%I.%I', schema_name, table_name);
    relation regclass := to_regclass(place);
    number bigint;
    known modak.decoupled;
begin
    if relation is null then
        raise exception 'there is no table %', place using errcode = 'undefined_table', hint = 'Names are taken as they stand, capitals included.';
    end if;
    select substr(o.option, length('table_name=') + 1)::bigint into number
      from pg_foreign_table f join pg_foreign_server s on s.oid = f.ftserver and s.srvname = 'modak_gateway', unnest(f.ftoptions) o(option)
     where f.ftrelid = relation and 'schema_name=iceberg' = any (f.ftoptions) and o.option ~ '^table_name=[0-9]+$';
    if number is null then
        raise exception '% is no decoupled table', place
            using errcode = 'wrong_object_type', hint = 'Registered tables are taken back by `modak unregister`, others dropped by DROP TABLE.';
    end if;
    select d.* into known from modak.decoupled d where d.table_id = number;
    -- First, because it asks whether the caller may, and whether something depends on the table.
    execute format('drop foreign table %s', place);
    if known.table_id is null then
        return;
    end if;
    delete from modak.decoupled d where d.table_id = number;
    -- Peers let go of what they attached, once the lake has dropped it.
    delete from modak.shared_tables s using modak.nodes n where n.is_self and s.node = n.node_name and s.table_id = number;
    perform modak.order_gateway('drop', jsonb_build_object('table_id', number, 'ref', known.lake_table_ref, 'profile', known.storage_profile,
                                                           'purge', coalesce(purge, false), 'is_attached', known.is_attached));
    if coalesce(purge, false) or not known.is_attached then
        -- Until this transaction commits the lake has the table still: a new one under its name gets another name there.
        perform set_config('modak.dropped_lake_tables', concat_ws(chr(31), nullif(current_setting('modak.dropped_lake_tables', true), ''),
                                                                  known.lake_table_ref), true);
    end if;
end
$$;
