-- name: try_lead
select pg_try_advisory_lock(%(key)s) as mine;

-- name: take_lead
insert into modak.leader as l (epoch, holder, host, pid, backend_pid)
values (1, %(holder)s, %(host)s, %(pid)s, pg_backend_pid())
on conflict (singleton) do update
   set epoch = l.epoch + 1, holder = excluded.holder, host = excluded.host, pid = excluded.pid, backend_pid = excluded.backend_pid,
       since = now(), seen_at = now()
returning epoch, since;

-- name: show_life
update modak.leader set seen_at = now() where epoch = %(epoch)s returning epoch;

-- name: read_leader
select epoch, holder, host, pid, since, seen_at, extract(epoch from now() - seen_at)::float8 as seen_seconds from modak.leader;

-- name: list_workers
-- Every worker's session for the lease, whoever holds the lock first. When it began is not everybody's to see.
select substr(a.application_name, length(%(prefix)s) + 1) as holder, a.backend_start as since, k.pid is not null as leads
  from pg_stat_activity a
  left join pg_locks k on k.pid = a.pid and k.locktype = 'advisory' and k.database = a.datid and k.granted
   and k.classid = (%(key)s::bigint >> 32)::oid and k.objid = (%(key)s::bigint & 4294967295)::oid and k.objsubid = 1
 where a.datname = current_database() and starts_with(a.application_name, %(prefix)s)
 order by leads desc, holder;

-- name: list_silent_leaders
-- Who holds the lock and has said nothing for so long. A worker that is well shows life on that very session.
select a.pid
  from pg_locks k join pg_stat_activity a on a.pid = k.pid
 where k.locktype = 'advisory' and k.database = (select oid from pg_database where datname = current_database())
   and k.classid = (%(key)s::bigint >> 32)::oid and k.objid = (%(key)s::bigint & 4294967295)::oid and k.objsubid = 1 and k.granted
   and a.state_change < clock_timestamp() - make_interval(secs => %(seconds)s);

-- name: list_earlier_sessions
select pid from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and application_name ~ '^modak worker [0-9]+$';

-- name: holds_lock
-- Whether this very session has it: behind a pooler that hands sessions around, or after a lost one, it has not.
select exists (
    select from pg_locks k
     where k.locktype = 'advisory' and k.database = (select oid from pg_database where datname = current_database())
       and k.classid = (%(key)s::bigint >> 32)::oid and k.objid = (%(key)s::bigint & 4294967295)::oid and k.objsubid = 1
       and k.granted and k.pid = pg_backend_pid()
) as mine;

-- name: hold_epoch
-- Held to the end of the transaction: a new leader's number waits for it, or is seen here.
select exists (
    select from pg_locks k
     where k.locktype = 'advisory' and k.database = (select oid from pg_database where datname = current_database())
       and k.classid = (%(key)s::bigint >> 32)::oid and k.objid = (%(key)s::bigint & 4294967295)::oid and k.objsubid = 1
       and k.granted and k.pid = l.backend_pid
) as leads
  from modak.leader l where l.epoch = %(epoch)s for key share of l;
