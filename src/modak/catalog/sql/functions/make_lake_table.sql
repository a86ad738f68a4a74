-- The foreign table of a decoupled table, its row in the catalog, and the order to the gateway: create, or attach to what is there.
-- All of it in the caller's transaction and with the caller's rights; the columns have been checked.
create or replace function modak.make_lake_table(p_verb text, p_schema text, p_table text, p_columns jsonb, p_partition_by text[], p_profile text,
                                                 p_ref text) returns regclass
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    place text := format('%I.%I', p_schema, p_table);
    relation regclass;
    number bigint;
    described jsonb;
    replaced text[];
    answer jsonb;
    told text;
begin
    described := modak.make_foreign_table(place, p_columns, p_verb = 'attach');
    relation := to_regclass(place);
    perform modak.check_lake_partitions(relation, p_partition_by);

    -- A trigger of statements keeps batches whole, and pushed-down changes too. Foreign tables take one for TRUNCATE since Postgres 16.
    execute format('create trigger modak_begin_lake_write before insert or update or delete%s on %s for each statement execute function modak.begin_lake_write()',
                   case when current_setting('server_version_num')::integer >= 160000 then ' or truncate' else '' end, place);
    -- After a restore the numbers of other tables are those of the server that they were made on.
    number := relation::oid::bigint;
    while exists (select from modak.decoupled d where d.table_id = number) loop
        number := number + 4294967296;
    end loop;
    execute format('alter foreign table %s options (set table_name %L)', place, number);
    perform modak.fit_batches(relation);

    -- Names in the lake that were this table's or are another one's of ours, renamed since: a new table takes another name beside them.
    replaced := modak.forget_dropped_lake_table(p_schema, p_table, p_ref, p_profile);
    replaced := replaced || array(select d.lake_table_ref from modak.decoupled d where d.storage_profile = p_profile);
    answer := modak.order_gateway(p_verb, jsonb_build_object(
        'table_id', number, 'schema', p_schema, 'name', p_table, 'ref', p_ref, 'profile', p_profile, 'columns', described,
        'partition_by', to_jsonb(coalesce(p_partition_by, '{}')), 'is_attached', p_verb = 'attach',
        -- Drops that are committed here and under way in the lake: their names are free in a moment.
        'dropping', (select coalesce(jsonb_agg(c.change->>'ref'), '[]') from modak.lake_commits l, jsonb_array_elements(l.changes) c(change)
                      where c.change->>'kind' = 'drop' and c.change->>'profile' = p_profile
                        and pg_xact_status(l.xid::xid8) is distinct from 'aborted'),
        'replaced', to_jsonb(replaced || string_to_array(nullif(current_setting('modak.dropped_lake_tables', true), ''), chr(31)))));
    insert into modak.decoupled (table_id, schema_name, table_name, lake_table_ref, lake_table_uuid, storage_profile, columns, partition_by, is_attached)
    select number, p_schema, p_table, answer->>'ref', answer->>'uuid', p_profile, answer->'columns',
           array(select jsonb_array_elements_text(answer->'partition_by')), (answer->>'is_attached')::boolean;
    perform modak.share_tables(number);
    for told in select jsonb_array_elements_text(answer->'notices') loop
        raise notice '%', told;
    end loop;
    return relation;
end
$$;
