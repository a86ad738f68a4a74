-- The foreign table of a decoupled table, without a number yet, and its columns as the gateway knows them. p_lenient: a default that came with
-- a lake table and does not fit its column any more is left out, not refused.
create or replace function modak.make_foreign_table(p_place text, p_columns jsonb, p_lenient boolean) returns jsonb
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    relation regclass;
    described jsonb;
    one record;
begin
    execute (
        select format('create foreign table %s (%s) server modak_gateway options (schema_name %L, table_name %L, batch_size %L, fetch_size %L)', p_place,
                      string_agg(format('%I %s options (column_name %L)%s', c.given->>'name', c.given->>'type',
                                        'a' || coalesce(c.given->>'field_id', c.position::text), case when r.required then ' not null' else '' end),
                                 ', ' order by c.position),
                      'iceberg', 'none yet', '5000', '10000')
          from jsonb_array_elements(p_columns) with ordinality c(given, position),
               lateral (select coalesce((c.given->>'required')::boolean, (c.given->>'not_null')::boolean, not (c.given->>'nullable')::boolean, false)) r(required));
    relation := to_regclass(p_place);
    for one in select c.given->>'name' as label, c.given->>'default' as preset, c.given->>'comment' as note
                 from jsonb_array_elements(p_columns) c(given) loop
        if one.preset is not null then
            begin
                execute format('alter foreign table %s alter column %I set default (%s)', p_place, one.label, one.preset);
            exception when syntax_error_or_access_rule_violation or data_exception or feature_not_supported then
                -- One that came with the lake table may not fit its column any more.
                if not p_lenient then
                    raise;
                end if;
                raise notice 'column %: its default % is left out: %', one.label, one.preset, sqlerrm;
            end;
        end if;
        if one.note is not null then
            execute format('comment on column %s.%I is %L', p_place, one.label, one.note);
        end if;
    end loop;
    select jsonb_agg(jsonb_build_object(
               'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'base', t.typname, 'modifier', a.atttypmod,
               'field_id', coalesce((c.given->>'field_id')::integer, c.position::integer), 'required', a.attnotnull, 'comment', c.given->>'comment',
               'default', c.given->>'default')
               || case when c.given ? 'lake' then jsonb_build_object('lake', c.given->>'lake') else '{}' end order by c.position)
      into described
      from jsonb_array_elements(p_columns) with ordinality c(given, position)
      join pg_attribute a on a.attrelid = relation and a.attname = c.given->>'name'
      join pg_type t on t.oid = a.atttypid;
    for one in select d.given->>'name' as label, d.given->>'type' as type,
                      ((d.given->>'modifier')::integer - 4) >> 16 as digits, ((((d.given->>'modifier')::integer - 4) & 2047) # 1024) - 1024 as scale
                 from jsonb_array_elements(described) d(given) where d.given->>'base' = 'numeric' loop
        if one.digits > 38 or one.scale not between 0 and one.digits then
            raise exception 'column "%": type % does not fit an Iceberg decimal', one.label, one.type
                using errcode = 'feature_not_supported', hint = 'Up to 38 digits, and a scale between 0 and that.';
        end if;
    end loop;
    return described;
end
$$;
