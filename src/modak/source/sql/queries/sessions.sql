-- name: list_lock_holders
select distinct coalesce(
           format('session %%s (%%s, since %%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename::text), a.xact_start),
           format('prepared transaction %%L', p.gid),
           'somebody') as who
  from pg_locks l
  join pg_class c on c.oid = l.relation
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_stat_activity a on a.pid = l.pid
  left join pg_prepared_xacts p on l.virtualtransaction like '-1/%%' and p.transaction::text = split_part(l.virtualtransaction, '/', 2)
 where l.locktype = 'relation' and l.granted
   and l.database = (select d.oid from pg_database d where d.datname = current_database())
   and l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
   and n.nspname || '.' || c.relname = any(%(names)s)
   and l.pid is distinct from %(pid)s;

-- name: list_horizon_holders
-- A snapshot with xmin <= xid may not see what xid did. Ages compare transaction ids across the wrap-around.
with line as (
    select age(((%(xid)s::numeric %% 4294967296)::bigint)::text::xid) as age
)
select format('session %%s (%%s, %%s, since %%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename::text, a.backend_type), a.state,
              coalesce(a.xact_start, a.backend_start)) as who
  from pg_stat_activity a, line
 where a.pid <> %(pid)s
   and (a.datname = current_database() or a.datname is null)
   and a.backend_type in ('client backend', 'walsender', 'parallel worker', 'background worker')
   and ((a.backend_xmin is not null and age(a.backend_xmin) >= line.age) or (a.backend_xid is not null and age(a.backend_xid) >= line.age))
union all
select format('prepared transaction %%L (since %%s)', p.gid, p.prepared)
  from pg_prepared_xacts p, line
 where p.database = current_database() and age(p.transaction) >= line.age
union all
select format('replication slot %%s', s.slot_name)
  from pg_replication_slots s, line
 where s.xmin is not null and age(s.xmin) >= line.age;
