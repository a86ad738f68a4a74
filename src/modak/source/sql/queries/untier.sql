-- name: read_partition_constraint
select c.oid::bigint as oid, pg_get_partition_constraintdef(c.oid) as definition,
       pn.nspname::text as parent_schema, p.relname::text as parent_name
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_inherits i on i.inhrelid = c.oid
  left join pg_class p on p.oid = i.inhparent
  left join pg_namespace pn on pn.oid = p.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s;

-- name: list_foreign_keys
select k.conname::text as name, pg_get_constraintdef(k.oid) as definition, k.convalidated as validated
  from pg_constraint k
  join pg_class c on c.oid = k.conrelid
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s and k.contype = 'f'
   -- Not the ones that Postgres keeps for each partition of a referenced table: those follow from the first.
   and not exists (select from pg_constraint u where u.oid = k.conparentid and u.conrelid = k.conrelid)
 order by k.conname;
