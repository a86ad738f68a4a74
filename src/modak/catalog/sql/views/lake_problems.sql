-- Commits that stay in decoupled tables though Postgres did not confirm them, in the shape of modak.problems.
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
       k.kept_at as last_seen
  from modak.kept_commits k
  left join modak.decoupled d using (storage_profile, lake_table_ref);
