-- name: draw_ticket
select ticket, node, is_granted from modak.claim_table(%(iceberg_table)s);

-- name: grant_claim
select state, coalesce(missing, '{}') as missing from modak.grant_claim(%(iceberg_table)s, %(ticket)s, %(look)s);

-- name: ask_again
select modak.ask_again(%(iceberg_table)s, %(ticket)s);

-- name: release_claim
select modak.release_claim(%(iceberg_table)s, %(ticket)s) as was_there;

-- name: holds_claim
select modak.holds_claim(%(iceberg_table)s, %(ticket)s) as held;

-- name: tend_node
select subscription from modak.tend_node() as subscription;

-- name: read_alive_window
select extract(epoch from modak.peer_alive_window())::float8 as seconds;

-- name: settle_session
-- A claim lives as long as its session, however long its writer takes; and each statement must see what was committed before it.
select set_config('default_transaction_isolation', 'read committed', false), set_config('idle_session_timeout', '0', false),
       set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false);

-- name: tables_to_follow
-- What peers have made, or dropped, and what is not done about it here; what failed, after a while. Nothing on a standby, and where nobody wants it.
-- What was dropped comes first: another table of its name may have been made since.
select f.node, f.table_id, true as is_dropped, d.table_id as own_table_id, d.lake_table_ref as ref, d.storage_profile as profile,
       d.lake_table_uuid as uuid, f.problem as told
  from modak.followed_tables f
  join modak.nodes n on n.node_name = f.node and not n.is_self
  left join modak.decoupled d on d.table_id = f.own_table_id
 where not exists (select from modak.shared_tables s where s.node = f.node and s.table_id = f.table_id)
   and f.tried_at < now() - make_interval(secs => %(seconds)s) and not pg_is_in_recovery()
union all
select s.node, s.table_id, false, null, s.lake_table_ref, s.storage_profile, null, f.problem
  from modak.shared_tables s
  join modak.nodes n on n.node_name = s.node and not n.is_self
  left join modak.followed_tables f on f.node = s.node and f.table_id = s.table_id
 where (f.node is null or (f.problem is not null and f.tried_at < now() - make_interval(secs => %(seconds)s)))
   and not pg_is_in_recovery()
   and lower(coalesce(current_setting('modak.follow_peers', true), '')) not in ('off', 'false', 'no', '0')
 order by is_dropped desc, node, table_id limit 100;

-- name: follow_table
select modak.follow_table(%(node)s, %(table_id)s);

-- name: unfollow_table
select modak.unfollow_table(%(node)s, %(table_id)s);

-- name: note_not_followed
insert into modak.followed_tables (node, table_id, problem, hint) values (%(node)s, %(table_id)s, %(problem)s, %(hint)s)
on conflict (node, table_id) do update set problem = excluded.problem, hint = excluded.hint, tried_at = now();

-- name: list_not_followed
-- Those that are known here are shown with their problems anyhow.
select p.schema_name, p.table_name, p.job, p.message, p.hint, p.first_seen as since
  from modak.lake_problems p
 where p.code = 'table_not_followed'
   and not exists (select from modak.decoupled d where d.lake_table_ref = p.lake_table_ref and d.storage_profile = p.storage_profile)
 order by p.first_seen;
