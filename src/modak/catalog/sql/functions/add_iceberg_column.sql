-- One more column for a decoupled table: {"name", "type", "default", "comment"}. Rows that are there have NULL in it. The lake table gets it at once; it
-- is shown here when the transaction commits. One that another engine, or another node, has added is taken as it is.
--   select modak.add_iceberg_column('public', 'events', '{"name": "country", "type": "text"}')
create or replace function modak.add_iceberg_column(schema_name text, table_name text, definition jsonb) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    place text := format('%I.%I', schema_name, table_name);
    label text := definition->>'name';
    known modak.decoupled := modak.find_lake_table(schema_name, table_name);
    described jsonb;
    answer jsonb;
    told text;
begin
    if known.table_id is null then
        raise exception 'there is no decoupled table % of yours', place
            using errcode = 'undefined_table', hint = 'Names are taken as they stand, capitals included; only the owner alters a table.';
    end if;
    perform modak.check_lake_columns(jsonb_build_array(definition));
    if (definition->>'not_null')::boolean or not (definition->>'nullable')::boolean then
        raise exception 'column "%" cannot be NOT NULL: rows that are there have no value for it', label
            using errcode = 'not_null_violation', hint = 'Leave not_null out.';
    end if;
    -- First, because it asks whether the caller may, and waits for whoever uses the table.
    execute format('alter foreign table %s add column %I %s', place, label, definition->>'type');
    if definition->>'default' is not null then
        execute format('alter foreign table %s alter column %I set default (%s)', place, label, definition->>'default');
    end if;
    if definition->>'comment' is not null then
        execute format('comment on column %s.%I is %L', place, label, definition->>'comment');
    end if;
    select jsonb_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'base', t.typname, 'modifier', a.atttypmod,
                              'comment', definition->>'comment', 'default', definition->>'default')
      into described
      from pg_attribute a join pg_type t on t.oid = a.atttypid
     where a.attrelid = to_regclass(place) and a.attname = label;
    answer := modak.order_gateway('widen', jsonb_build_object('table_id', known.table_id, 'column', described));
    execute format('alter foreign table %s alter column %I options (add column_name %L)', place, label, 'a' || (answer->'column'->>'field_id'));
    perform modak.fit_batches(to_regclass(place));
    update modak.decoupled d set columns = d.columns || jsonb_build_array(answer->'column') where d.table_id = known.table_id;
    for told in select jsonb_array_elements_text(answer->'notices') loop
        raise notice '%', told;
    end loop;
end
$$;
