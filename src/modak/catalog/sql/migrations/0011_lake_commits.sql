-- Commits of decoupled tables that stay though Postgres rolled them back, and when their folders were swept.

create table modak.kept_commits (
    commit_id       text not null,
    storage_profile text not null,
    lake_table_ref  text not null,
    xid             text not null,
    snapshot_id     bigint,
    reason          text not null,
    kept_at         timestamptz not null default now(),
    primary key (commit_id, storage_profile, lake_table_ref)
);
comment on table modak.kept_commits is 'Commits to decoupled tables that Postgres rolled back and that stay in the lake, as later commits rest on them. Delete a row once it is looked at.';
comment on column modak.kept_commits.commit_id is 'The stamp modak.commit-id in the summary of the snapshot.';
comment on column modak.kept_commits.xid is 'The transaction that Postgres rolled back, or does not remember.';
comment on column modak.kept_commits.snapshot_id is 'The snapshot of the commit; NULL where it has expired.';
comment on column modak.kept_commits.reason is 'Why it could not be taken out.';

alter table modak.decoupled add column swept_at timestamptz not null default now();
comment on column modak.decoupled.swept_at is 'When the files that nothing refers to were last looked for.';
