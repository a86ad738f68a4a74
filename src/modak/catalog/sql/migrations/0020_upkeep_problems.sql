-- Why the worker does not get on with a decoupled table. modak.problems is about registered tables, and refers to them.

create table modak.upkeep_problems (
    table_id     bigint not null references modak.decoupled on delete cascade,
    job          text not null,
    code         text not null,
    message      text not null,
    hint         text,
    attempts     integer not null default 1,
    first_seen   timestamptz not null default now(),
    last_seen    timestamptz not null default now(),
    next_attempt timestamptz,
    primary key (table_id, job)
);
comment on table modak.upkeep_problems is 'Why a job of a decoupled table does not get on, and the way out; removed when it succeeds. modak.lake_problems shows it.';
comment on column modak.upkeep_problems.next_attempt is 'When the worker tries again.';
