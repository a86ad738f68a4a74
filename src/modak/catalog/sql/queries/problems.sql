-- name: report_problem
insert into modak.problems (table_id, job, code, message, hint, details)
values (%(table_id)s, %(job)s, %(code)s, %(message)s, %(hint)s, %(details)s)
on conflict (table_id, job) do update
   set code = excluded.code, message = excluded.message, hint = excluded.hint, details = excluded.details, last_seen = now(),
       next_attempt = null,
       attempts = case when modak.problems.code = excluded.code then modak.problems.attempts + 1 else 1 end,
       first_seen = case when modak.problems.code = excluded.code then modak.problems.first_seen else now() end;

-- name: clear_problem
delete from modak.problems where table_id = %(table_id)s and job = %(job)s;

-- name: postpone_problem
update modak.problems set next_attempt = now() + make_interval(secs => %(seconds)s)
 where table_id = %(table_id)s and job = %(job)s returning job;

-- name: count_attempts
select attempts from modak.problems where table_id = %(table_id)s and job = %(job)s;

-- name: find_postponed
select message, next_attempt at time zone 'UTC' as next_attempt from modak.problems
 where table_id = %(table_id)s and job = %(job)s and next_attempt > now();

-- name: clear_job_of
delete from modak.problems where table_id = any (%(ids)s) and job = %(job)s;

-- name: problem_stands
-- Whether it has been there for so long.
select exists (select from modak.problems
                where table_id = %(table_id)s and job = %(job)s and code = %(code)s
                  and first_seen <= now() - make_interval(secs => %(seconds)s)) as found;

-- name: clear_job
delete from modak.problems where job = %(job)s;

-- name: find_missing_view
select message, hint from modak.missing_views where table_id = %(table_id)s;
