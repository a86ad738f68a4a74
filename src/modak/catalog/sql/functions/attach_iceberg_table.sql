-- An Iceberg table that is there already, as a decoupled table: read and write. Its columns are those of the lake, with the types and defaults
-- that the node declared that made it. Whoever writes to the lake can write those, so they are checked like those of a new table.
--   select modak.attach_iceberg_table('public', 'events', 'sales.events')
create or replace function modak.attach_iceberg_table(schema_name text, table_name text, lake_table text, profile text default null) returns regclass
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    target text := modak.lake_profile(profile);
    known modak.decoupled := modak.find_lake_table(schema_name, table_name);
    taken text;
    described jsonb;
    told text;
begin
    -- A mesh may have been quicker.
    if known.is_attached and (known.lake_table_ref, known.storage_profile) = (lake_table, target) then
        raise notice 'table %.% is attached to lake table % already', quote_ident(schema_name), quote_ident(table_name), lake_table;
        return to_regclass(format('%I.%I', schema_name, table_name));
    end if;
    perform modak.check_lake_name(schema_name, table_name);
    if lake_table is null or lake_table !~ '^[^.]+\.[^.]+$' then
        raise exception 'lake table % is not namespace.table', coalesce(quote_literal(lake_table), 'NULL')
            using errcode = 'invalid_name', hint = 'For example sales.events.';
    end if;
    select format('%I.%I', t.schema_name, t.table_name) into taken
      from modak.tables t where t.lake_table_ref = lake_table and t.storage_profile = target;
    if taken is not null then
        raise exception 'lake table % holds the cold rows of table %', lake_table, taken
            using errcode = 'object_in_use', hint = 'Read and write it through that name.';
    end if;
    perform modak.forget_dropped_lake_table(schema_name, table_name, lake_table, target);
    select format('%I.%I', d.schema_name, d.table_name) into taken
      from modak.decoupled d where d.lake_table_ref = lake_table and d.storage_profile = target;
    if taken is not null then
        raise exception 'lake table % is attached as % already', lake_table, taken
            using errcode = 'duplicate_object', hint = 'Use that name, or drop it first: without purge the lake table stays.';
    end if;
    described := modak.order_gateway('describe', jsonb_build_object('ref', lake_table, 'profile', target));
    perform modak.check_lake_type(c.given->>'name', c.given->>'type'), modak.check_lake_default(c.given->>'name', c.given->>'default')
       from jsonb_array_elements(described->'columns') c(given);
    for told in select jsonb_array_elements_text(described->'notices') loop
        raise notice '%', told;
    end loop;
    return modak.make_lake_table('attach', schema_name, table_name, described->'columns', null, target, lake_table);
end
$$;
