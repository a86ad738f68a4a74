-- A whole query in the gateway, two-tier and at one pinned seam; in Postgres itself where the gateway declines it, and where this
-- transaction has changed something that only Postgres can show.
--   select * from modak.query($$select count(*) from events$$) as t(n bigint)
create or replace function modak.query(sql text) returns setof record
language plpgsql volatile
as $$
declare
    types text[];
    path text := pg_catalog.to_json(pg_catalog.current_schemas(true));
begin
    if pg_catalog.pg_current_xact_id_if_assigned() is null
       and pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed' then
        select a.types into types from modak.ask_gateway('columns', sql, path) a(types);
    end if;
    if types is null then
        return query execute sql;
        return;
    end if;
    return query execute (
        select pg_catalog.format('select %s from modak.ask_gateway(%L, $1, $2) q(vals)',
                                 pg_catalog.string_agg(pg_catalog.format('(q.vals)[%s]::%s', n, type), ', ' order by n), 'rows')
          from pg_catalog.unnest(types) with ordinality t(type, n))
        using sql, path;
end
$$;
