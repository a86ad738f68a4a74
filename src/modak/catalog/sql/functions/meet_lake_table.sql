-- A table of this name that is attached already, by hand or since another node made it: the very one that is asked for, or an error that says what
-- is different. NULL where there is none, or where it is not the caller's to use.
create or replace function modak.meet_lake_table(p_schema text, p_table text, p_columns jsonb, p_partition_by text[], p_profile text) returns regclass
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    relation regclass;
    known modak.decoupled := modak.find_lake_table(p_schema, p_table);
    spare text;
    described jsonb;
    different jsonb;
begin
    if known.table_id is null or not known.is_attached or known.storage_profile <> p_profile then
        return null;
    end if;
    relation := to_regclass(format('%I.%I', p_schema, p_table));
    -- Only Postgres can tell what a type's name means, and only of a relation.
    spare := format('%I.%I', p_schema, concat('modak_', replace(gen_random_uuid()::text, '-', '')));
    described := modak.make_foreign_table(spare, p_columns, false);
    perform modak.check_lake_partitions(spare::regclass, p_partition_by);
    execute format('drop foreign table %s', spare);
    different := modak.order_gateway('compare', jsonb_build_object(
        'table_id', known.table_id, 'schema', p_schema, 'name', p_table, 'ref', known.lake_table_ref, 'profile', p_profile, 'columns', described,
        'partition_by', to_jsonb(coalesce(p_partition_by, '{}'))))->'differences';
    if jsonb_array_length(different) > 0 then
        raise exception 'relation % exists already, and is another one: %', relation, (select string_agg(d, '; ') from jsonb_array_elements_text(different) d)
            using errcode = 'duplicate_table', hint = 'Choose another name. Nothing was changed.';
    end if;
    raise notice 'table % is there already, with the same columns: it is lake table %', relation, known.lake_table_ref;
    return relation;
end
$$;
