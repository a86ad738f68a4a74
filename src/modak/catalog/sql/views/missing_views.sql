-- Registered tables whose two-tier view is gone, in the shape of modak.problems. Nobody noted when it went.
create or replace view modak.missing_views as
select t.table_id,
       t.schema_name,
       t.table_name,
       'view' as job,
       'view_missing' as code,
       case when c.oid is null then format('the view %I.%I is gone: somebody dropped it', t.schema_name, t.view_name)
            else format('%I.%I is not the view that Modak made', t.schema_name, t.view_name) end as message,
       format('%s`modak register %I.%I --tier-key %I%s%s%s` makes the view anew, with the owner and the grants of the heap',
              case when c.oid is not null then 'rename that relation or drop it; then ' end, t.schema_name, t.table_name, t.tier_key_col,
              case when t.mode = 'mirrored' then ' --mode mirrored' end, case when t.keep_heap then ' --keep-heap' end,
              case when t.check_cold_keys then ' --check-cold-keys' end) as hint,
       1 as attempts,
       now() as first_seen,
       now() as last_seen
  from modak.tables t
  join pg_class h on h.oid = t.table_id::oid
  left join (pg_class c join pg_namespace n on n.oid = c.relnamespace) on n.nspname = t.schema_name and c.relname = t.view_name
 where (t.mode = 'tiered' or t.cold_build > 0) and c.relkind is distinct from 'v';
comment on view modak.missing_views is 'Registered tables whose two-tier view somebody dropped, with what to do about it.';
