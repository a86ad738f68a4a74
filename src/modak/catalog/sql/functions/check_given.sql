-- What modak_upsert or modak_delete was given names its row, and names nothing that the table does not have.
create or replace function modak.check_given(p_kind text, target modak.tables, p_given jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    registered text := target.schema_name || '.' || target.table_name;
    needed text[] := target.primary_key_cols;
    known text[] := target.primary_key_cols || target.tier_key_col;
    wrong text;
begin
    if jsonb_typeof(p_given) is distinct from 'object' then
        raise exception 'the % of a row of table "%" must be a JSON object, not %', case p_kind when 'upsert' then 'image' else 'key' end,
            registered, coalesce(jsonb_typeof(p_given), 'NULL') using errcode = '22023';
    end if;
    if p_kind = 'upsert' then
        needed := array(select distinct k.name from unnest(known) k(name) order by 1);
        known := array(select a.attname::text from pg_attribute a
                        where a.attrelid = target.table_id::oid and a.attnum > 0 and not a.attisdropped order by a.attnum);
    end if;
    select string_agg(format('"%s"', n.name), ', ') into wrong from unnest(needed) n(name) where (p_given ->> n.name) is null;
    if wrong is not null then
        raise exception 'no value for key column % of table "%"', wrong, registered
            using errcode = '23502', hint = format('Needed: %s.', array_to_string(needed, ', '));
    end if;
    select string_agg(format('"%s"', g.name), ', ') into wrong from jsonb_object_keys(p_given) g(name) where not g.name = any (known);
    if wrong is not null then
        raise exception '% is no % of table "%"', wrong, case p_kind when 'upsert' then 'column' else 'part of the key' end, registered
            using errcode = '42703', hint = format('Known: %s.', array_to_string(known, ', '));
    end if;
end
$$;
