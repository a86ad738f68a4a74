-- name: may_read_system
select has_function_privilege('pg_catalog.pg_control_system()', 'execute') as may;

-- name: read_system
select system_identifier::text as system_id from pg_control_system();

-- name: read_database
select d.oid::bigint as database_id, d.datname::text as database_name from pg_database d where d.datname = current_database();

-- name: read_ownership
select claim, system_id, database_id, database_name from modak.ownership;

-- name: claim_ownership
insert into modak.ownership (claim, system_id, database_id, database_name)
values (%(claim)s, %(system_id)s, %(database_id)s, %(database_name)s)
on conflict (singleton) do nothing;

-- name: change_ownership
insert into modak.ownership (claim, system_id, database_id, database_name)
values (%(claim)s, %(system_id)s, %(database_id)s, %(database_name)s)
on conflict (singleton) do update
   set claim = excluded.claim, system_id = excluded.system_id, database_id = excluded.database_id,
       database_name = excluded.database_name, claimed_at = now();
