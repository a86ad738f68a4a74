-- name: journal_lake_commit
insert into modak.lake_commits (commit_id, xid, changes)
select %(commit_id)s, %(xid)s::text, %(changes)s where pg_xact_status(%(xid)s::text::xid8) = 'in progress';

-- name: lake_commit_status
select pg_xact_status(xid::xid8) as status from modak.lake_commits where commit_id = %(commit_id)s;

-- name: transaction_status
select pg_xact_status(%(xid)s::xid8) as status;

-- name: forget_lake_commit
delete from modak.lake_commits where commit_id = %(commit_id)s;

-- name: open_lake_commits
select commit_id, xid, changes from modak.lake_commits order by created_at;

-- name: keep_lake_commit
insert into modak.kept_commits (commit_id, storage_profile, lake_table_ref, xid, snapshot_id, reason)
values (%(commit_id)s, %(profile)s, %(ref)s, %(xid)s, %(snapshot_id)s, %(reason)s) on conflict do nothing;

-- name: list_lake_problems
select job, message, hint, first_seen as since, attempts, next_attempt from modak.lake_problems
 where lake_table_ref = %(ref)s and storage_profile = %(profile)s order by first_seen;
