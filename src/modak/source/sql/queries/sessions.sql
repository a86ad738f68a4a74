-- name: list_lock_holders
select distinct case
           when p.gid is not null then format('prepared transaction %%L (since %%s)', p.gid, p.prepared)
           when a.pid is not null then
               format('session %%s (%%s, since %%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename::text), a.xact_start)
           else 'somebody' end as who
  from pg_locks l
  join pg_class c on c.oid = l.relation
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_stat_activity a on a.pid = l.pid
  -- A prepared transaction has no process; the lock on its own id tells which one it is.
  left join pg_locks x on l.pid is null and x.pid is null and x.locktype = 'transactionid' and x.virtualtransaction = l.virtualtransaction
  left join pg_prepared_xacts p on p.transaction = x.transactionid
 where l.locktype = 'relation' and l.granted
   and l.database = (select d.oid from pg_database d where d.datname = current_database())
   and (%(readers)s or l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                                  'AccessExclusiveLock'))
   and n.nspname || '.' || c.relname = any(%(names)s)
   and l.pid is distinct from %(pid)s;

-- name: list_exclusive_holders
with recursive tree(oid) as (
    select %(oid)s::oid
    union all
    select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid)
select distinct format('%%I.%%I is held by %%s', n.nspname, c.relname, case
           when p.gid is not null then format('prepared transaction %%L (since %%s)', p.gid, p.prepared)
           when a.pid is not null then
               format('session %%s (%%s, since %%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename::text), a.xact_start)
           else 'somebody' end) as who
  from pg_locks l
  join tree on tree.oid = l.relation
  join pg_class c on c.oid = l.relation
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_stat_activity a on a.pid = l.pid
  left join pg_locks x on l.pid is null and x.pid is null and x.locktype = 'transactionid' and x.virtualtransaction = l.virtualtransaction
  left join pg_prepared_xacts p on p.transaction = x.transactionid
 where l.locktype = 'relation' and l.granted and l.mode = 'AccessExclusiveLock' and l.pid is distinct from %(pid)s
   and l.database = (select d.oid from pg_database d where d.datname = current_database())
 order by 1;

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

-- name: list_capture_triggers
select t.tgname::text as name
  from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s and t.tgname in ('modak_before_capture', 'modak_capture', 'modak_capture_truncate', 'modak_older');
