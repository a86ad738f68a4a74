-- Where the rows of an INSERT would go, for modak_explain. Rows of literals are counted by their tier keys; what else there may be to run
-- is not run, and its rows are placed one by one as they come.
create or replace function modak.explain_insert(p_relation regclass, p_columns text, p_rows text) returns setof text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- No function is called in these: numbers, strings with a type before or behind them, and words that are values.
    type_name constant text := '[[:alpha:]_][[:alnum:]_ ]*(?:\(\s*[0-9]+(?:\s*,\s*[0-9]+)?\s*\))?';
    item constant text := '(?:[+-]?\s*[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|(?:' || type_name || '\s*)?''(?:[^'']|'''')*''|null|true|false|default)'
                          '(?:\s*::\s*' || type_name || '(?:\s*\[\s*\])?)*';
    one_row constant text := '\(\s*' || item || '(?:\s*,\s*' || item || ')*\s*\)';
    all_rows constant text := '^\s*values\s*(' || one_row || '(?:\s*,\s*' || one_row || ')*)\s*(?:returning\M.*|on\s+conflict\M.*)?;?\s*$';
    seam record;
    place integer;
    literals text;
    keys text;
    counted record;
    route text;
begin
    select * into seam from modak.insert_seam(p_relation);
    if seam.tier_key is null then
        return;
    end if;
    if seam.one_tier then
        return next 'modak: route: hot';
        return;
    end if;
    select c.place into place
      from (select case when p_columns is null then a.attname::text end, a.place
              from (select a.attname, row_number() over (order by a.attnum) as place
                      from pg_attribute a where a.attrelid = p_relation and a.attnum > 0 and not a.attisdropped) a
            union all
            select (parse_ident(given.name))[1], given.place
              from unnest(regexp_split_to_array(p_columns, '\s*,\s*')) with ordinality given(name, place)) c(name, place)
     where c.name = seam.tier_key;
    -- A string with escapes may go on behind its first quote.
    if length(p_rows) < 1000000 and p_rows !~* '\me''' then
        literals := (regexp_match(p_rows, all_rows, 'i'))[1];
    end if;
    select string_agg('(' || k.key || ')::' || seam.key_type, '), (') into keys
      from regexp_matches(literals, one_row, 'gi') r(found)
     cross join lateral (select (array_agg(i.found[1]))[place] from regexp_matches(r.found[1], item, 'gi') i(found)) k(key);
    if keys is null or keys ~* '\(default\)::' then
        return next 'modak: route: row by row';
        return next format('modak: rows with %I >= %s are hot, those below it cold%s', seam.tier_key, seam.line,
                           coalesce(', and those below ' || seam.floor_line || ' are refused', ''));
        return;
    end if;
    execute format(
        'select count(*) filter (where k.%1$I >= %2$s) as hot, count(*) filter (where k.%1$I < %2$s) as cold, '
        'count(*) filter (where k.%1$I < %3$s) as expired, count(*) filter (where k.%1$I is null) as missing, '
        'count(*) filter (where k.%1$I >= %2$s and (%4$s)) as unplaced from (values (%5$s)) k(%1$I)',
        seam.tier_key, seam.line, coalesce(seam.floor_line, 'null'), coalesce(seam.unplaced, 'false'), keys) into counted;
    route := case when counted.expired + counted.missing + counted.unplaced > 0 then 'rejected'
                  when counted.hot > 0 and counted.cold > 0 then 'both' when counted.hot > 0 then 'hot' else 'cold' end;
    return next 'modak: route: ' || route;
    return next format('modak: rows: %s hot, %s cold, %s rejected (%s below the retention line, %s without a partition, %s without a tier key)',
                       counted.hot - counted.unplaced, counted.cold - counted.expired, counted.expired + counted.unplaced + counted.missing,
                       counted.expired, counted.unplaced, counted.missing);
end
$$;
