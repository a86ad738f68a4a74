-- name: report_problem
insert into modak.problems (table_id, job, code, message, hint, details)
values (%(table_id)s, %(job)s, %(code)s, %(message)s, %(hint)s, %(details)s)
on conflict (table_id, job) do update
   set code = excluded.code, message = excluded.message, hint = excluded.hint, details = excluded.details, last_seen = now(),
       attempts = case when modak.problems.code = excluded.code then modak.problems.attempts + 1 else 1 end,
       first_seen = case when modak.problems.code = excluded.code then modak.problems.first_seen else now() end;

-- name: clear_problem
delete from modak.problems where table_id = %(table_id)s and job = %(job)s;
