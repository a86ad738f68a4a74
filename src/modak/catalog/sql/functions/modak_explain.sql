-- Where a statement would run and what it would touch, without running it: the gateway's route for a SELECT on its port and in
-- modak.query, and the plan of Postgres itself through the two-tier view.
create or replace function public.modak_explain(sql text) returns setof text
language plpgsql volatile
as $$
declare
    line text;
begin
    if sql operator(pg_catalog.~*) '^\s*(select|with|values|table)\M' then
        return query select pg_catalog.concat('gateway: ', a.vals[1])
                       from modak.ask_gateway('explain', sql, pg_catalog.current_setting('search_path')) a(vals);
    end if;
    for line in execute pg_catalog.concat('explain (verbose, costs on) ', sql) loop
        return next pg_catalog.concat('postgres: ', line);
    end loop;
end
$$;
