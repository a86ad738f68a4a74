-- Rows of modak.decoupled that stand in the way of a new one, although their foreign table was dropped by itself or has another name now.
-- Returns the lake tables that were made here and that nothing here names any more; they stay in the lake.
create or replace function modak.forget_dropped_lake_table(p_schema text, p_table text, p_ref text, p_profile text) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    one record;
    forgotten text[] := '{}';
begin
    for one in
        select d.table_id, d.lake_table_ref, d.storage_profile, d.is_attached, n.nspname, c.relname
          from modak.decoupled d
          left join pg_foreign_table f on f.ftoptions @> array['schema_name=iceberg', concat('table_name=', d.table_id)]
                and f.ftserver = (select s.oid from pg_foreign_server s where s.srvname = 'modak_gateway')
          left join pg_class c on c.oid = f.ftrelid
          left join pg_namespace n on n.oid = c.relnamespace
         where (d.schema_name = p_schema and d.table_name = p_table) or (d.lake_table_ref = p_ref and d.storage_profile = p_profile) loop
        if one.relname is null then
            delete from modak.decoupled d where d.table_id = one.table_id;
            forgotten := forgotten || case when one.storage_profile = p_profile and not one.is_attached then one.lake_table_ref end;
        else
            update modak.decoupled d set schema_name = one.nspname, table_name = one.relname where d.table_id = one.table_id;
        end if;
    end loop;
    return array_remove(forgotten, null);
end
$$;
