-- One worker leads. Each leadership has a number that only rises, and a publication of an older one finds it gone.

create table modak.leader (
    singleton   boolean primary key default true check (singleton),
    epoch       bigint not null unique,
    holder      text not null,
    host        text not null,
    pid         integer not null,
    backend_pid integer not null,
    since       timestamptz not null default now(),
    seen_at     timestamptz not null default now()
);
comment on table modak.leader is 'The worker that leads, or led last: a session of it holds an advisory lock, and every publication of its jobs holds this row.';
comment on column modak.leader.epoch is 'Number of this leadership. A key, so that a new leader waits for publications (FOR KEY SHARE) and a sign of life does not.';
comment on column modak.leader.backend_pid is 'The session that holds the lock; gone, the worker publishes nothing any more.';
comment on column modak.leader.seen_at is 'Last sign of life.';

alter table modak.problems add column next_attempt timestamptz;
comment on column modak.problems.next_attempt is 'When the worker tries again. NULL: with its next cycle, or somebody ran the job by hand.';
