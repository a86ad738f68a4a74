-- Which tiers a plan of Postgres touches, for modak_explain, by the relations in it: partitions of a registered heap are hot, foreign tables of
-- its cold side are cold, and its delta holds corrections of the latter. A decoupled table is in the lake alone.
-- For everybody: which relations belong together, and whether one is empty, Postgres's own catalog and statistics tell everybody, too.
create or replace function modak.explain_tiers(p_plan jsonb) returns setof text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tiers text[];
begin
    with nodes as (
        select n.node, n.node ->> 'Operation' is not distinct from 'Insert' as inserts,
               to_regclass(quote_ident(n.node ->> 'Schema') || '.' || quote_ident(n.node ->> 'Relation Name')) as relation
          from jsonb_path_query(p_plan, 'strict $.** ? (exists (@."Node Type"))') n(node)
    ), named as (
        select n.relation, n.inserts from nodes n where n.relation is not null
        union all
        -- A scan that joins foreign tables at the gateway, or counts there, names them in words, quoted where they have to be.
        select to_regclass(m.name[1]), false
          from nodes n, regexp_matches(n.node ->> 'Relations',
                                       '(?:[a-z_][a-z0-9_]*|"(?:[^"]|"")+")\.(?:[a-z_][a-z0-9_]*|"(?:[^"]|"")+")', 'g') m(name)
    ), placed as (
        select c.oid, n.inserts, c.relkind = 'f' as is_foreign, c.relnamespace = 'modak'::regnamespace as is_ours,
               -- The default partition is the spill.
               pg_get_expr(c.relpartbound, c.oid) is not distinct from 'DEFAULT' as is_spill,
               case when c.relnamespace = 'modak'::regnamespace then substring(c.relname from '^(?:cold|delta)_(\d+)')::bigint
                    else coalesce(pg_partition_root(c.oid)::oid, c.oid)::bigint end as table_id
          from named n join pg_class c on c.oid = n.relation
    ), touched as (
        select t.table_id, t.cold_build, bool_or(p.is_ours) as by_view,
               bool_or(p.is_ours and p.is_foreign) or bool_or(p.inserts) and (t.mode = 'tiered' or t.cold_build > 0) as cold,
               bool_or(not p.is_ours) as heap,
               -- The view shows nothing of copies below T, nor of the spill.
               bool_or(not p.is_ours and not p.is_spill and s.state is distinct from 'tiered') as above
          from placed p
          join modak.tables t on t.table_id = p.table_id
          left join modak.partitions s on s.table_id = t.table_id and s.partition_id = p.oid::bigint
         group by t.table_id
    ), found as (
        select 'cold' as tier from touched where cold
        union
        select 'hot' from touched where heap and (above or not (by_view and cold))
        union
        -- Every plan through the view looks at the delta. If its cold side is left out of it, none of the corrections is asked for.
        select 'corrections' from touched t
         where by_view and exists (select from modak.delta d where d.table_id = t.table_id)
           and (cold or not exists (select from pg_inherits i where i.inhparent = to_regclass(format('modak.cold_%s_%s', t.table_id, t.cold_build))))
        union
        select 'lake' from named n join modak.decoupled d on d.table_id = n.relation::oid::bigint
    )
    select array_agg(f.tier order by f.tier) into tiers from found f;
    if tiers is not null then
        return next 'modak: route: ' || case when tiers in ('{hot}', '{cold}', '{lake}') then tiers[1]
                                             when tiers <@ '{cold, corrections}' then 'cold' else 'both' end;
        return next 'modak: tiers: ' || array_to_string(tiers, ', ');
    end if;
end
$$;
