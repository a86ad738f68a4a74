-- Where a statement would run and what it would touch, without running it: the gateway's route for a SELECT on its port and in
-- modak.query, the tiers of an INSERT's rows or of the plan, and the plan of Postgres itself through the two-tier view.
create or replace function public.modak_explain(sql text) returns setof text
language plpgsql volatile
as $$
declare
    one_name constant pg_catalog.text := '(?:"(?:[^"]|"")+"|[[:alpha:]_][[:alnum:]_$]*)';
    whole_name constant pg_catalog.text := pg_catalog.concat(one_name, '(?:\s*\.\s*', one_name, ')?');
    -- Comments before the statement are none of it.
    body constant pg_catalog.text := pg_catalog.regexp_replace(sql, '^(?:\s+|--[^\n]*(?:\n|$)|/\*(?:[^*]|\*+[^*/])*\*+/)+', '');
    -- The table, the columns if they are named, and where the rows come from.
    insertion constant pg_catalog.text[] := pg_catalog.regexp_match(body, pg_catalog.concat(
        '^insert\s+into\s+(', whole_name, ')(?:\s+as\s+', one_name, ')?\s*(?:\(\s*(', one_name, '(?:\s*,\s*', one_name,
        ')*)\s*\)\s*)?(?:overriding\s+(?:system|user)\s+value\s+)?(.*)$'), 'i');
    merged constant pg_catalog.text[] := pg_catalog.regexp_match(body, pg_catalog.concat('^merge\s+into\s+(', whole_name, ')'), 'i');
    target constant pg_catalog.regclass := pg_catalog.to_regclass(coalesce(insertion[1], merged[1]));
    heap constant pg_catalog.regclass := modak.heap_of(target);
    plan pg_catalog.jsonb;
    line pg_catalog.text;
    is_told pg_catalog.bool := false;
begin
    if body operator(pg_catalog.~*) '^[\s(]*(select|with|values|table)\M' then
        begin
            return query select pg_catalog.concat('gateway: ', a.vals[1])
                           from modak.ask_gateway('explain', sql, pg_catalog.to_json(pg_catalog.current_schemas(true))::pg_catalog.text) a(vals);
        exception
            when connection_exception then
                return next 'gateway: it does not answer; what follows is the plan of Postgres alone';
            when system_error then
                -- The lake is away, or what the gateway needs of its machine.
                return next pg_catalog.concat('gateway: ', sqlerrm);
        end;
    end if;
    begin
        -- A loop: a cursor takes one statement and no more, so that none behind it is run.
        for line in execute pg_catalog.concat('explain (verbose, format json) ', sql) loop
            plan := line;
        end loop;
    exception
        when connection_exception then
            return next 'modak: route: cold';
            return next 'modak: Postgres has no plan: it asks the gateway what cold rows cost, which does not answer; hot rows may be touched as well';
            return;
        when feature_not_supported or wrong_object_type or object_not_in_prerequisite_state then
            if heap is null then
                raise;
            end if;
            get stacked diagnostics line := message_text;
            return next 'modak: route: rejected';
            return next pg_catalog.format('modak: %s is a view, on which Postgres refuses this statement: %s', target, line);
            return next pg_catalog.format('modak: run it on the heap, %s, or on the gateway''s port, which sends it there; it meets hot rows only', heap);
            return;
    end;
    if insertion is not null then
        return query select e.told from modak.explain_insert(target, insertion[2], insertion[3]) e(told);
        is_told := found;
    end if;
    if not is_told then
        return query select e.told from modak.explain_tiers(plan) e(told);
    end if;
    for line in execute pg_catalog.concat('explain (verbose, costs on) ', sql) loop
        return next pg_catalog.concat('postgres: ', line);
    end loop;
end
$$;
