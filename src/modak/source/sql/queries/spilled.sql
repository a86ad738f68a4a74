-- name: list_inbound_keys
-- Foreign keys that point to a partition; for one that points to the whole table Postgres keeps one for each of its partitions.
select format('foreign key %%s of %%s', k.conname, k.conrelid::regclass) as described
  from pg_constraint k
  join pg_class c on c.oid = k.confrelid
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s and k.contype = 'f'
 order by 1;

-- name: list_delete_triggers
-- The user's own, with when they fire: O in ordinary sessions, R in those that apply changes of others, A always, D never.
select t.tgname::text as name, t.tgenabled::text as fires
  from pg_trigger t
  join pg_proc p on p.oid = t.tgfoid
  join pg_class c on c.oid = t.tgrelid
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s and not t.tgisinternal and (t.tgtype & 8) <> 0
   and p.pronamespace <> 'modak'::regnamespace
 order by 1;
