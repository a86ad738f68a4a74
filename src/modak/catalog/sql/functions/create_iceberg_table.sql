-- A table whose rows are in the lake only, used by plain SQL: a foreign table of the caller's, and an Iceberg table that is made when the
-- transaction commits. Columns are [{"name", "type", "not_null" or "nullable", "default", "comment"}].
-- Where another node of the same lake has made that very table, the foreign table is attached to it; a notice says so.
--   select modak.create_iceberg_table('public', 'events', '[{"name": "id", "type": "bigint"}, {"name": "at", "type": "timestamptz"}]', '{day(at)}')
create or replace function modak.create_iceberg_table(schema_name text, table_name text, columns jsonb, partition_by text[] default null,
                                                      profile text default null) returns regclass
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    target text := modak.lake_profile(profile);
    known regclass;
begin
    perform modak.check_lake_columns(columns);
    known := modak.meet_lake_table(schema_name, table_name, columns, partition_by, target);
    if known is not null then
        return known;
    end if;
    perform modak.check_lake_name(schema_name, table_name);
    return modak.make_lake_table('create', schema_name, table_name, columns, partition_by, target, null);
end
$$;
