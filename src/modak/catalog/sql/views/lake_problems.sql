-- What is wrong with decoupled tables, in the shape of modak.problems: jobs that do not get on, commits that stay though Postgres did not
-- confirm them, and tables of peers that could not be followed. New columns go to the end.
create or replace view modak.lake_problems as
select coalesce(d.schema_name, split_part(k.lake_table_ref, '.', 1)) as schema_name,
       coalesce(d.table_name, substr(k.lake_table_ref, strpos(k.lake_table_ref, '.') + 1)) as table_name,
       k.storage_profile,
       k.lake_table_ref,
       'commit' as job,
       'commit_kept' as code,
       format('commit %s stays in %s though Postgres did not confirm its transaction %s: %s', k.commit_id, k.lake_table_ref, k.xid, k.reason) as message,
       format('its client was told that it failed, or nothing: look at its rows, then delete from modak.kept_commits where commit_id = %L', k.commit_id) as hint,
       1 as attempts,
       k.kept_at as first_seen,
       k.kept_at as last_seen,
       null::timestamptz as next_attempt
  from modak.kept_commits k
  left join modak.decoupled d using (storage_profile, lake_table_ref)
union all
select coalesce(s.schema_name, d.schema_name, ''),
       coalesce(s.table_name, d.table_name, ''),
       coalesce(s.storage_profile, d.storage_profile),
       coalesce(s.lake_table_ref, d.lake_table_ref),
       'follow',
       'table_not_followed',
       f.problem,
       f.hint,
       1,
       f.first_seen,
       f.tried_at,
       null
  from modak.followed_tables f
  left join modak.shared_tables s on s.node = f.node and s.table_id = f.table_id
  left join modak.decoupled d on d.table_id = f.own_table_id
 where f.problem is not null
union all
select d.schema_name, d.table_name, d.storage_profile, d.lake_table_ref, p.job, p.code, p.message, p.hint, p.attempts, p.first_seen, p.last_seen,
       p.next_attempt
  from modak.upkeep_problems p join modak.decoupled d using (table_id);
