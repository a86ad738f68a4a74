-- name: list_named_relations
-- Relations of the catalog's schema that carry a table's number in their name, with the name they get.
select c.oid::regclass::text as relation,
       regexp_replace(c.relname, '^([a-z]+_)' || %(old)s || '(?=_|$)', '\1' || %(new)s) as new_name
  from pg_class c
 where c.relnamespace = 'modak'::regnamespace and c.relkind in ('r', 'p', 'f', 'i', 'I')
   and c.relname ~ ('^(delta|cold|incoming|untier)_' || %(old)s || '(_|$)')
 order by c.oid;

-- name: list_named_functions
select p.oid::regprocedure::text as routine,
       regexp_replace(p.proname, '_' || %(old)s || '$', '_' || %(new)s) as new_name
  from pg_proc p
 where p.pronamespace = 'modak'::regnamespace
   and p.proname ~ ('^(spill_guard|spill_mirror|capture|write|unseat|missed|same|taken|older|check_keys|unregister_first)_' || %(old)s || '$')
 order by p.oid;

-- name: list_references
-- What points to modak.tables by its number.
select k.conrelid::regclass::text as relation, k.conname::text as name, pg_get_constraintdef(k.oid) as definition, a.attname::text as column_name
  from pg_constraint k join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
 where k.confrelid = 'modak.tables'::regclass and k.contype = 'f' and k.conparentid = 0
 order by 1, 2;

-- name: find_guarded_heap
-- The table of this name, if triggers of the registration with this number stand in its tree: then it is the registered one, whatever
-- number it has now. A mirrored table whose heap is complete carries none.
select c.oid::bigint as oid
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s and c.relkind in ('r', 'p')
   and (not %(has_guard)s
        or exists (select from pg_trigger t join pg_proc p on p.oid = t.tgfoid
                    where t.tgrelid in (select relid from pg_partition_tree(c.oid)) and p.pronamespace = 'modak'::regnamespace
                      and p.proname = 'spill_guard_' || %(table_id)s));

-- name: find_oid
select to_regclass(format('%%I.%%I', %(schema)s::text, %(name)s::text))::oid::bigint as oid;
