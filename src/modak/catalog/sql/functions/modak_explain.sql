-- Where a statement would run and what it would touch, without running it: the gateway's route for a SELECT on its port and in
-- modak.query, the tiers of an INSERT's rows, and the plan of Postgres itself through the two-tier view.
create or replace function public.modak_explain(sql text) returns setof text
language plpgsql volatile
as $$
declare
    line text;
    one_name constant text := '(?:"(?:[^"]|"")+"|[[:alpha:]_][[:alnum:]_$]*)';
    insertion pg_catalog.text[];
begin
    if sql operator(pg_catalog.~*) '^\s*(select|with|values|table)\M' then
        return query select pg_catalog.concat('gateway: ', a.vals[1])
                       from modak.ask_gateway('explain', sql, pg_catalog.to_json(pg_catalog.current_schemas(true))::pg_catalog.text) a(vals);
    end if;
    -- The table, the columns if they are named, and where the rows come from.
    insertion := pg_catalog.regexp_match(sql, pg_catalog.concat(
        '^\s*insert\s+into\s+(', one_name, '(?:\s*\.\s*', one_name, ')?)(?:\s+as\s+', one_name, ')?\s*(?:\(\s*(', one_name, '(?:\s*,\s*', one_name,
        ')*)\s*\)\s*)?(?:overriding\s+(?:system|user)\s+value\s+)?(.*)$'), 'i');
    if insertion is not null then
        return query select e.told from modak.explain_insert(pg_catalog.to_regclass(insertion[1]), insertion[2], insertion[3]) e(told);
    end if;
    for line in execute pg_catalog.concat('explain (verbose, costs on) ', sql) loop
        return next pg_catalog.concat('postgres: ', line);
    end loop;
end
$$;
