-- name: read_relation
select c.oid::bigint as oid,
       n.nspname as schema_name,
       c.relname as table_name,
       c.relkind as kind,
       c.relpersistence as persistence,
       pg_get_userbyid(c.relowner) as owner,
       pg_has_role(c.relowner, 'usage') as may_alter,
       c.relrowsecurity as row_security,
       c.relispartition as is_partition,
       exists (select from pg_inherits i where i.inhrelid = c.oid and not c.relispartition) as inherits,
       obj_description(c.oid, 'pg_class') as comment,
       p.partstrat as strategy,
       array(select coalesce(a.attname::text, '')
               from unnest(p.partattrs::smallint[]) with ordinality k(attnum, n)
               left join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum and k.attnum > 0
              order by k.n) as key_columns
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_partitioned_table p on p.partrelid = c.oid
 where n.nspname = %(schema)s and c.relname = %(name)s and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S', 'i', 'I', 'c', 't');

-- name: find_table_by_oid
select n.nspname::text as schema_name, c.relname::text as table_name
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.oid = %(oid)s::oid and c.relkind in ('r', 'p');

-- name: find_view
select c.oid::bigint as oid, c.relkind = 'v' as is_view
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s and c.relname = %(name)s;

-- name: list_columns
select a.attnum::integer as number,
       a.attname::text as name,
       format_type(a.atttypid, a.atttypmod) as display,
       a.atttypid::bigint as type_oid,
       a.atttypmod as modifier,
       a.attnotnull as not_null,
       a.attidentity::text as identity,
       a.attgenerated::text as generated,
       pg_get_expr(d.adbin, d.adrelid) as default_expression,
       col_description(a.attrelid, a.attnum) as comment,
       (select array[n.nspname::text, k.collname::text]
          from pg_collation k join pg_namespace n on n.oid = k.collnamespace
         where k.oid = a.attcollation and a.attcollation <> (select t.typcollation from pg_type t where t.oid = a.atttypid)
       ) as collation,
       coalesce((select k.collisdeterministic from pg_collation k where k.oid = a.attcollation), true) as deterministic
  from pg_attribute a
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
 order by a.attnum;

-- name: list_shape
-- The columns by themselves: to write down a default, Postgres 17 takes a lock on the table.
select a.attnum::integer as number, a.attname::text as name, a.atttypid::bigint as type_oid, a.atttypmod as modifier
  from pg_attribute a
 where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
 order by a.attnum;

-- name: list_generated_columns
select a.attname::text as name from pg_attribute a
 where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped and a.attgenerated <> '' order by a.attnum;

-- name: list_enum_labels
with recursive used(oid) as (
    select a.atttypid from pg_attribute a where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
    union
    select x.oid from used join pg_type t on t.oid = used.oid left join pg_range r on r.rngtypid = t.oid or r.rngmultitypid = t.oid
     cross join lateral (values (t.typbasetype), (t.typelem), (r.rngsubtype)) as x(oid)
     where x.oid <> 0)
select e.oid::bigint as oid, e.enumlabel::text as label from used join pg_enum e on e.enumtypid = used.oid order by e.oid;

-- name: read_type
select t.typname::text as name,
       n.nspname::text as namespace,
       t.typtype::text as kind,
       t.typbasetype::bigint as base_oid,
       t.typtypmod as base_modifier,
       format_type(t.oid, null) as display,
       case when e.typarray = t.oid then e.oid::bigint end as element_oid
  from pg_type t
  join pg_namespace n on n.oid = t.typnamespace
  left join pg_type e on e.oid = t.typelem
 where t.oid = %(oid)s::oid;

-- name: list_unique_keys
select i.indisprimary as is_primary,
       array(select a.attname::text
               from unnest(i.indkey::smallint[]) with ordinality k(attnum, n)
               join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
              where k.n <= i.indnkeyatts
              order by k.n) as columns
  from pg_index i
 where i.indrelid = %(oid)s::oid and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
 order by i.indisprimary desc, i.indexrelid;

-- name: list_partitions
select c.oid::bigint as oid,
       n.nspname::text as schema_name,
       c.relname::text as table_name,
       t.parentrelid::oid::bigint as parent_oid,
       t.level,
       t.isleaf as is_leaf,
       pg_get_expr(c.relpartbound, c.oid) as bound,
       p.partstrat::text as strategy,
       array(select coalesce(a.attname::text, '')
               from unnest(p.partattrs::smallint[]) with ordinality k(attnum, n)
               left join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum and k.attnum > 0
              order by k.n) as key_columns,
       c.relkind as kind,
       c.relpersistence as persistence,
       case when t.isleaf then pg_total_relation_size(c.oid) else 0 end as bytes,
       greatest(c.reltuples, 0)::bigint as estimated_rows
  from pg_partition_tree(%(oid)s::oid::regclass) t
  join pg_class c on c.oid = t.relid
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_partitioned_table p on p.partrelid = c.oid
 where t.level > 0
 order by t.level, n.nspname, c.relname;

-- name: list_dependents
with heap as (
    select c.oid, c.relname, c.reltype from pg_class c
     where c.oid = %(oid)s::oid or c.oid in (select relid from pg_partition_tree(%(oid)s::oid::regclass))
)
select distinct case v.relkind when 'm' then 'materialized view' else 'view' end as kind,
       format('%%I.%%I', n.nspname, v.relname) as name, h.relname::text as on, v.oid::bigint as oid,
       h.oid::bigint as on_oid
  from pg_depend d
  join heap h on d.refobjid = h.oid and d.refclassid = 'pg_class'::regclass
  join pg_rewrite r on d.classid = 'pg_rewrite'::regclass and r.oid = d.objid
  join pg_class v on v.oid = r.ev_class
  join pg_namespace n on n.oid = v.relnamespace
 where v.oid not in (select oid from heap)
union all
select distinct 'function', format('%%I.%%I(%%s)', n.nspname, f.proname, pg_get_function_identity_arguments(f.oid)),
       h.relname::text, f.oid::bigint, h.oid::bigint
  from pg_depend d
  join heap h on d.refobjid = h.oid and d.refclassid = 'pg_class'::regclass
  join pg_proc f on d.classid = 'pg_proc'::regclass and f.oid = d.objid
  join pg_namespace n on n.oid = f.pronamespace
 where f.prosqlbody is not null
union all
-- Row types belong to the relation and do not follow its name: f(events) would not take a row of the view.
select distinct 'signature of function', format('%%I.%%I(%%s)', n.nspname, f.proname, pg_get_function_identity_arguments(f.oid)),
       h.relname::text, f.oid::bigint, h.oid::bigint
  from heap h
  join pg_type t on t.oid = h.reltype
  cross join unnest(array[t.oid, t.typarray]) as own(type_oid)
  join pg_depend d on d.refobjid = own.type_oid and d.refclassid = 'pg_type'::regclass
  join pg_proc f on d.classid = 'pg_proc'::regclass and f.oid = d.objid
  join pg_namespace n on n.oid = f.pronamespace
 where (array[f.prorettype] || f.proargtypes::oid[] || coalesce(f.proallargtypes, '{}')) && array[t.oid, t.typarray]
   -- What keeps a view of ours from being dropped is no user of it.
   and not (n.nspname = 'modak' and f.proname ~ '^unregister_first_[0-9]+$')
union all
select distinct 'column', format('%%s.%%I', a.attrelid::regclass, a.attname), h.relname::text, a.attrelid::bigint, h.oid::bigint
  from heap h
  join pg_type t on t.oid = h.reltype
  cross join unnest(array[t.oid, t.typarray]) as own(type_oid)
  join pg_attribute a on a.atttypid = own.type_oid and not a.attisdropped
union all
select distinct 'policy', format('%%I on %%s', p.polname, p.polrelid::regclass), h.relname::text, p.oid::bigint, h.oid::bigint
  from pg_depend d
  join heap h on d.refobjid = h.oid and d.refclassid = 'pg_class'::regclass
  join pg_policy p on d.classid = 'pg_policy'::regclass and p.oid = d.objid
 where p.polrelid not in (select oid from heap)
union all
select 'foreign key', format('%%I on %%s', k.conname, k.conrelid::regclass), h.relname::text, k.oid::bigint, h.oid::bigint
  from pg_constraint k
  join heap h on k.confrelid = h.oid
 where k.contype = 'f' and k.conparentid = 0
 order by 1, 2;

-- name: list_triggers
select t.tgname::text as name, t.tgtype::int & 1 = 1 as of_rows, t.tgtype::int & 4 <> 0 as on_insert, t.tgtype::int & 8 <> 0 as on_delete,
       t.tgtype::int & 16 <> 0 as on_update
  from pg_trigger t
 where t.tgrelid = %(oid)s::oid and not t.tgisinternal and t.tgname !~ '^modak_' and t.tgenabled <> 'D' and t.tgtype::int & 28 <> 0 order by 1;

-- name: find_trigger
select t.tgname::text as name from pg_trigger t where t.tgrelid = %(oid)s::oid and t.tgname = %(name)s;

-- name: list_known_newcomers
-- Partitions that the trigger still watches and need not be watched: spills, and of those that are hot all that begin at T or above it.
with known as (
    select p.partition_id
      from modak.partitions p
      join modak.cutline l on l.table_id = p.table_id
     where p.table_id = %(table_id)s and (p.state <> 'hot' or p.tier_key_lo >= l.tier_key_hi)
    union
    select t.tgrelid::bigint from pg_trigger t
     where t.tgname = 'modak_mirror' and pg_partition_root(t.tgrelid)::oid = %(table_id)s::oid
)
select n.nspname::text as schema_name, c.relname::text as name
  from known k
  join pg_trigger t on t.tgrelid::bigint = k.partition_id and t.tgname = %(trigger)s and t.tgenabled <> 'D'
  join pg_class c on c.oid = t.tgrelid
  join pg_namespace n on n.oid = c.relnamespace
 order by 1, 2;

-- name: list_publications
select p.pubname::text as name
  from pg_publication p
 where p.puballtables
    or exists (select from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = %(oid)s::oid)
 order by 1;

-- name: list_sibling_names
select c.relname::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %(schema)s
union
select t.typname::text from pg_type t join pg_namespace n on n.oid = t.typnamespace
 where n.nspname = %(schema)s;

-- name: list_grants
select case when a.grantee = 0 then 'public' else pg_get_userbyid(a.grantee) end as grantee,
       a.grantee = 0 as to_public,
       a.privilege_type as privilege,
       a.is_grantable as grantable,
       '' as column
  from pg_class c, aclexplode(c.relacl) a
 where c.oid = %(oid)s::oid and a.grantee <> c.relowner
union all
select case when x.grantee = 0 then 'public' else pg_get_userbyid(x.grantee) end, x.grantee = 0, x.privilege_type, x.is_grantable,
       a.attname::text
  from pg_class c
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  cross join aclexplode(a.attacl) x
 where c.oid = %(oid)s::oid and x.grantee <> c.relowner
 order by 5, 1, 3;

-- name: find_locking_statements
select s.query, s.calls
  from pg_stat_statements s
 where s.dbid = (select d.oid from pg_database d where d.datname = current_database())
   and s.query ~* %(mentions)s
   and s.query ~* '(on\s+conflict|\mmerge\s+into\M|\mfor\s+(no\s+key\s+)?update\M|\mfor\s+(key\s+)?share\M)'
 order by s.calls desc
 limit 20;

-- name: find_extension
select n.nspname::text as schema_name
  from pg_extension e join pg_namespace n on n.oid = e.extnamespace
 where e.extname = %(name)s;

-- name: define_view
select format('create or replace view %%I.%%I%%s as %%s', n.nspname, c.relname,
              case when c.reloptions is null then '' else ' with (' || array_to_string(c.reloptions, ', ') || ')' end,
              pg_get_viewdef(c.oid)) as definition
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.oid = %(oid)s::oid;

-- name: define_function
select pg_get_functiondef(%(oid)s::oid) as definition;

-- name: list_identity_sequences
select a.attname::text as column_name, d.objid::bigint as sequence_id
  from pg_depend d join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
 where d.refobjid = %(oid)s::oid and d.deptype = 'i' and d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
   and a.attidentity <> '';

-- name: list_view_extras
-- What a user put on a view himself: it would be gone with the view.
select 'trigger' as kind, t.tgname::text as name from pg_trigger t
 where t.tgrelid = %(oid)s::oid and not t.tgisinternal and t.tgname not in ('modak_write', 'modak_missed', 'modak_missed_ask', 'modak_note_before', 'modak_note_after')
union all
select 'rule', r.rulename::text from pg_rewrite r
 where r.ev_class = %(oid)s::oid and r.rulename not in ('_RETURN', 'modak_insert')
 order by 1, 2;

-- name: read_view_options
select pg_get_userbyid(c.relowner)::text as owner, array_to_string(c.reloptions, ', ') as options from pg_class c where c.oid = %(oid)s::oid;

-- name: list_cold_ranges
select o.option_value as range
  from pg_inherits i
  join pg_class c on c.oid = i.inhparent
  join pg_namespace n on n.oid = c.relnamespace
  join pg_foreign_table f on f.ftrelid = i.inhrelid
  cross join lateral pg_options_to_table(f.ftoptions) o
 where n.nspname = %(schema)s and c.relname = %(name)s and o.option_name = 'table_name';

-- name: find_slot
select (coalesce(confirmed_flush_lsn, restart_lsn, '0/0') - '0/0'::pg_lsn)::bigint as confirmed, active,
       coalesce(pg_current_wal_lsn() - restart_lsn, 0)::bigint as retained_bytes,
       coalesce(wal_status = 'lost', false) as is_lost, active_pid as reader
  from pg_replication_slots where slot_name = %(name)s;

-- name: read_replication
-- What mirroring asks of the server, and of the role that looks.
select current_setting('wal_level') as wal_level,
       current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots)::int as free_slots,
       (r.rolsuper or r.rolreplication or exists (
           select from pg_roles g where g.rolname in ('rds_replication', 'rds_superuser') and pg_has_role(r.oid, g.oid, 'member'))
       ) as may_replicate,
       has_database_privilege(current_database(), 'create') as may_publish,
       (select oid::bigint from pg_database where datname = current_database()) as database_id
  from pg_roles r where r.rolname = current_user;

-- name: list_identities
-- The replica identity of a table, or of each of its partitions that hold rows.
with recursive tree(oid) as (
    select %(oid)s::oid
    union all
    select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
      join pg_class p on p.oid = i.inhrelid and p.relispartition)
select c.oid::bigint as oid, n.nspname::text as schema_name, c.relname::text as table_name, c.relreplident::text as identity,
       (select i.relname::text from pg_index x join pg_class i on i.oid = x.indexrelid
         where x.indrelid = c.oid and x.indisreplident) as index_name
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.oid in (select oid from tree) and c.relkind in ('r', 'p')
 order by c.oid;

-- name: list_identity_indexes
-- Unique indexes that can stand for a row: whole, not deferrable, of columns that are never NULL.
select i.relname::text as index_name, x.indisprimary as is_primary,
       (select array_agg(a.attname::text order by k.place)
          from unnest(x.indkey::int2[]) with ordinality as k(number, place)
          join pg_attribute a on a.attrelid = x.indrelid and a.attnum = k.number
         where k.place <= x.indnkeyatts) as columns
  from pg_index x join pg_class i on i.oid = x.indexrelid
 where x.indrelid = %(oid)s::oid and x.indisunique and x.indimmediate and x.indisvalid and x.indpred is null and x.indexprs is null
   and not exists (select from unnest(x.indkey::int2[]) with ordinality as k(number, place)
                     join pg_attribute a on a.attrelid = x.indrelid and a.attnum = k.number
                    where k.place <= x.indnkeyatts and not a.attnotnull)
 order by x.indisprimary desc, i.relname;

-- name: find_publication
select exists (select from pg_publication where pubname = %(name)s) as found,
       exists (select from pg_publication_rel r join pg_publication p on p.oid = r.prpubid where p.pubname = %(name)s) as has_tables,
       exists (select from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
                where p.pubname = %(name)s and r.prrelid = %(oid)s::oid) as has_table;

-- name: read_published
-- Everything that decides whether the stream tells of each change of a table, and whose it is. Whoever alters the publication, or takes
-- the table out and puts it back, leaves other rows in the catalog: the mark. The partitions are read from pg_inherits, as in list_leaves:
-- pg_partition_tree wants a lock on each of them, and one that somebody has to himself would keep the pump from every table.
with recursive tree(oid) as (
    select %(oid)s::oid
    union all
    select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
      join pg_class p on p.oid = i.inhrelid and p.relispartition),
indexes as (
    select x.indrelid, x.indisunique and x.indimmediate and x.indisvalid and x.indpred is null and x.indexprs is null as is_whole,
           c.relkind = 'r' and (c.relreplident = 'd' and x.indisprimary or c.relreplident = 'i' and x.indisreplident) as identifies,
           array(select a.attname::text
                   from unnest(x.indkey::int2[]) with ordinality as k(number, place)
                   join pg_attribute a on a.attrelid = x.indrelid and a.attnum = k.number
                  where k.place <= x.indnkeyatts) as columns
      from pg_index x join pg_class c on c.oid = x.indrelid
     where c.oid in (select oid from tree))
select concat_ws('/', p.oid, p.xmin, r.oid, r.xmin) as mark, p.oid is not null as exists,
       coalesce(p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate, false) as tells_all,
       coalesce(p.pubviaroot, false) as by_root,
       r.oid is not null or coalesce(p.puballtables, false) or exists (
           select from pg_publication_namespace s join pg_class c on c.relnamespace = s.pnnspid where s.pnpubid = p.oid and c.oid = t.oid)
           as has_table,
       r.prqual is not null as has_filter, r.prattrs is not null as has_columns,
       n.is_renamed or exists (
           select from indexes x where x.indrelid = t.oid and x.is_whole and x.columns @> %(key)s::text[] and x.columns <@ %(key)s::text[])
           as has_key,
       (select x.indrelid::regclass::text from indexes x where x.identifies and not n.is_renamed and not x.columns @> %(key)s::text[] limit 1)
           as other_identity,
       s.silent_partition
  from (select %(oid)s::oid as oid) t
 cross join lateral (
    -- A key column that is not there under its name is for the stream to tell.
    select exists (select from unnest(%(key)s::text[]) k(name)
                    where not exists (select from pg_attribute a where a.attrelid = t.oid and a.attname = k.name and not a.attisdropped))
               as is_renamed) n
 cross join lateral (
    -- What is written to it is not in the WAL, or in another server's. Registration refuses such a partition; it came later.
    with recursive below(oid) as (
        select i.inhrelid from pg_inherits i where i.inhparent = t.oid
        union all
        select i.inhrelid from below join pg_inherits i on i.inhparent = below.oid)
    select min(format('%%s is %%s', c.oid::regclass, case when c.relkind = 'f' then 'a foreign table' else 'UNLOGGED' end))
               as silent_partition
      from below join pg_class c on c.oid = below.oid
     where c.relispartition and (c.relkind not in ('r', 'p') or c.relkind = 'r' and c.relpersistence <> 'p')) s
  left join pg_publication p on p.pubname = %(name)s
  left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = t.oid;

-- name: list_leaves
-- Where a table's rows stand: the file, the links that make a partition a part of the table, from its own up to the table's, and, of the
-- table itself, what is another one for each column that somebody altered. Where the table is partitioned by ranges of one column, also that of the
-- partition next to it, of which this one is a part. A node was born as a partition if a column of it is as old as the
-- node: ATTACH touches all of them.
with recursive tree(oid) as (
    select %(oid)s::oid
    union all
    select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
      join pg_class p on p.oid = i.inhrelid and p.relispartition)
select c.oid::bigint as oid, n.nspname::text as schema_name, c.relname::text as table_name,
       pg_relation_filenode(c.oid)::bigint as filenode, coalesce(i.xmin::text, '') as attached, l.path,
       case when c.oid = %(oid)s::oid then (
           select jsonb_object_agg(a.attnum, concat_ws(' ', a.atttypid, a.atttypmod, a.xmin))
             from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped) end as columns,
       (select jsonb_build_object('top', k.oid::bigint, 'column', p.partattrs[0]::int, 'bound', pg_get_expr(k.relpartbound, 0))
          from pg_partitioned_table p join pg_class k on k.oid = (l.path->-1->>'oid')::oid
         where p.partrelid = %(oid)s::oid and p.partstrat = 'r' and p.partnatts = 1 and p.partattrs[0] > 0) as range
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
  left join pg_inherits i on i.inhrelid = c.oid
 cross join lateral (
    with recursive up(oid, parent, attached, depth) as (
        select i.inhrelid, i.inhparent, i.xmin::text, 1 from pg_inherits i where i.inhrelid = c.oid and c.oid <> %(oid)s::oid
        union all
        select i.inhrelid, i.inhparent, i.xmin::text, up.depth + 1 from up join pg_inherits i on i.inhrelid = up.parent
         where up.parent <> %(oid)s::oid)
    select coalesce(jsonb_agg(jsonb_build_object('oid', up.oid::bigint, 'parent', up.parent::bigint, 'attached', up.attached, 'born', exists (
               select from pg_attribute s join pg_attribute u on u.attrelid = s.attrelid
                where s.attrelid = up.oid and s.attname = 'tableoid' and s.attnum < 0 and u.attnum > 0 and not u.attisdropped
                  and u.xmin = s.xmin and u.cmin = s.cmin and u.xmax = '0' and s.xmax = '0')) order by up.depth), '[]') as path
      from up) l
 where c.oid in (select oid from tree) and c.relkind = 'r'
 order by c.oid;

-- name: find_link
-- Whether a partition still hangs on the table, or has yet to let go of it (DETACH … CONCURRENTLY).
select i.inhdetachpending as is_pending from pg_inherits i where i.inhrelid = %(oid)s::oid and i.inhparent = %(parent)s::oid;

-- name: log_running_transactions
-- Where the server can be asked, and this role may.
select case when exists (select from pg_proc p where p.oid = to_regprocedure('pg_catalog.pg_log_standby_snapshot()')
                            and has_function_privilege(p.oid, 'execute'))
            then (xpath('/row/lsn/text()', query_to_xml('select pg_catalog.pg_log_standby_snapshot() as lsn', false, true, '')))[1]::text
       end as lsn;

-- name: may_entrust
-- Whether this role can hand something to the worker's role and go on using it there.
select coalesce(
           has_schema_privilege(w.oid, 'modak', 'create') and pg_has_role(w.oid, 'usage')
           and pg_has_role(w.oid, case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end), false
       ) as may
  from (select to_regrole('modak_worker')::oid as oid) w;

-- name: list_given
-- Functions that are not the table's owner's yet, and that this role can give him.
select p.oid::regprocedure::text as routine, r.rolsuper as is_superuser
  from pg_proc p join pg_roles r on r.rolname = current_user join pg_roles o on o.rolname = %(owner)s
 where p.pronamespace = 'modak'::regnamespace and p.proname = any(%(names)s) and p.proowner <> o.oid and pg_has_role(p.proowner, 'usage')
   and pg_has_role(o.oid, case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end);

-- name: list_routines
select p.oid::regprocedure::text as routine, to_regrole('modak_worker') is not null as has_worker,
       p.proowner is distinct from to_regrole('modak_worker')::oid and pg_has_role(p.proowner, 'usage') as is_to_give
  from pg_proc p where p.pronamespace = 'modak'::regnamespace and p.proname = any(%(names)s);
