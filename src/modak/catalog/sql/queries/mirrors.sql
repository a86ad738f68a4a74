-- name: insert_mirror
insert into modak.mirrors (table_id, applied_lsn)
values (%(table_id)s, (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint)
on conflict (table_id) do update
   set applied_lsn = excluded.applied_lsn, copied_lsn = null, shapes = '[]', leaves = '[]', published = null, parked_at = null, updated_at = now();

-- name: read_mirror
select m.*, exists (select from modak.copy_progress g where g.table_id = m.table_id) as copying
  from modak.mirrors m where m.table_id = %(table_id)s;

-- name: lowest_applied
-- What the slot must keep: a table that is still being copied needs the stream from its copy on, a parked one nothing.
select min(m.applied_lsn) as lsn from modak.mirrors m join modak.tables t using (table_id)
 where t.slot_name = %(slot)s and m.parked_at is null;

-- name: follow_stream
update modak.mirrors set applied_lsn = %(lsn)s, updated_at = now(), as_of = coalesce(to_timestamp(%(as_of)s::float8), now())
 where table_id = %(table_id)s and applied_lsn = %(expected)s and parked_at is null;

-- name: set_frontier
-- F never goes back while the table is followed; a new copy clears it first.
update modak.cutline set replicated_lsn = %(lsn)s where table_id = %(table_id)s;

-- name: start_following
update modak.mirrors set applied_lsn = %(lsn)s, copied_lsn = %(lsn)s, leaves = %(leaves)s, shapes = %(shapes)s, published = %(published)s,
       updated_at = now(), as_of = now(), system_id = s.system_id, timeline = s.timeline
  from (select (pg_control_system()).system_identifier::text as system_id,
               ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint as timeline) s
 where table_id = %(table_id)s;

-- name: find_promotion
-- Whether this is another server, or another timeline of it, than the copy was made on.
select m.system_id <> (pg_control_system()).system_identifier::text as is_other, m.timeline,
       ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint as timeline_now
  from modak.mirrors m where m.table_id = %(table_id)s and m.timeline is not null;

-- name: save_shapes
update modak.mirrors set shapes = %(shapes)s where table_id = %(table_id)s;

-- name: save_leaves
update modak.mirrors set leaves = %(leaves)s where table_id = %(table_id)s;

-- name: save_published
update modak.mirrors set published = %(published)s where table_id = %(table_id)s;

-- name: forget_leaf
-- A partition that we dropped ourselves is not missed.
update modak.mirrors m
   set leaves = (select coalesce(jsonb_agg(l.leaf order by l.n), '[]') from jsonb_array_elements(m.leaves) with ordinality l(leaf, n)
                  where (l.leaf->>'oid')::bigint <> %(partition_id)s)
 where m.table_id = %(table_id)s;

-- name: list_shed_leaves
-- Partitions that we dropped ourselves, which the stream may still speak of: what was written to them last is in corrections.
select partition_id from modak.partitions where table_id = %(table_id)s and partition_id = any(%(ids)s) and state = 'dropped';

-- name: park_mirror
update modak.mirrors set parked_at = coalesce(parked_at, now()) where table_id = %(table_id)s;

-- name: start_copy
insert into modak.copy_progress (table_id, consistent_lsn, ranges, leaves, published)
values (%(table_id)s, %(lsn)s, %(ranges)s, %(leaves)s, %(published)s)
on conflict (table_id) do update
   set consistent_lsn = excluded.consistent_lsn, ranges = excluded.ranges, leaves = excluded.leaves, published = excluded.published, chunks_done = 0, last_pk = null, started_at = now(),
       updated_at = now();

-- name: read_copy
select consistent_lsn, ranges, leaves, published, chunks_done from modak.copy_progress where table_id = %(table_id)s;

-- name: note_chunks
update modak.copy_progress set ranges = %(ranges)s, chunks_done = %(chunks_done)s, updated_at = now() where table_id = %(table_id)s;

-- name: end_copy
delete from modak.copy_progress where table_id = %(table_id)s;

-- name: list_filled_columns
-- Columns that were added with a value for the rows that stood there already, kept in the catalog or written into a new file: by a default
-- of their own, as an identity, or by a default of their domain. The value is known where it is kept in the catalog, of a partitioned table
-- with its partitions.
select a.attname::text as name, a.attnum::int as number, m.is_known is not null as is_known, m.value
  from pg_attribute a join pg_type t on t.oid = a.atttypid
  left join lateral (
      select true as is_known, (l.attmissingval::text::text[])[1] as value
        from pg_attribute l
       where l.attrelid in (select %(table_id)s::oid union all select relid from pg_partition_tree(%(table_id)s::oid))
         and l.attname = a.attname and l.atthasmissing and not l.attisdropped
       limit 1) m on true
 where a.attrelid = %(table_id)s::oid and a.attnum = any(%(numbers)s) and not a.attisdropped
   and (m.is_known or a.atthasdef or a.attidentity <> '' or t.typdefaultbin is not null);

-- name: list_mirror_lags
-- How far behind each mirrored table is, in bytes of WAL and in time, and what its slot keeps. Where nothing was written since, nothing is late.
select m.table_id, t.schema_name, t.table_name, c.replicated_lsn as frontier, m.parked_at is not null as is_parked,
       m.copied_lsn is null as is_copying,
       greatest(n.lsn - m.applied_lsn, 0)::bigint as lag_bytes, 
       case when n.lsn > m.applied_lsn then greatest(extract(epoch from now() - coalesce(m.as_of, m.updated_at)), 0) else 0 end::float8
           as lag_seconds,
       coalesce((select n.lsn - (s.restart_lsn - '0/0'::pg_lsn) from pg_replication_slots s where s.slot_name = t.slot_name), 0)::bigint
           as retained_bytes,
       t.slot_name, t.wal_limit
  from modak.mirrors m join modak.tables t using (table_id) join modak.cutline c using (table_id)
 cross join (select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end - '0/0'::pg_lsn)::bigint
                 as lsn) n
 order by t.schema_name, t.table_name;

-- name: has_news
-- Whether a table is elsewhere than where the newest moment that names it says.
select exists (
    select from modak.cutline c
      left join lateral (select g.lake_snapshot_id, g.lsn from modak.mirror_tags g where g.table_id = c.table_id order by g.lsn desc limit 1) g on true
     where c.table_id = any (%(ids)s) and (g.lsn is null or g.lake_snapshot_id is distinct from c.lake_snapshot_id) and coalesce(g.lsn, 0) < %(lsn)s
) as found;

-- name: kept_tags
-- Moments that keep their names: the newest ones, and those that were promised to stay longer.
select distinct g.tag, g.lsn from modak.mirror_tags g
 where g.table_id = any (%(ids)s)
   and (g.lsn in (select distinct k.lsn from modak.mirror_tags k where k.table_id = any (%(ids)s) order by k.lsn desc limit %(limit)s)
        or exists (select from modak.mirror_moments m where m.lsn_number = g.lsn and m.kept_until > now()));

-- name: list_tagged
select distinct table_id from modak.mirror_tags where table_id = any (%(ids)s);

-- name: mirror_at_rest
-- F, and the Iceberg id of S, in one snapshot.
select replicated_lsn as lsn, (lake_props->>'snapshot_id')::bigint as snapshot from modak.cutline where table_id = %(table_id)s;

-- name: save_tags
-- The time that the moment stands for goes along with its pointer.
insert into modak.mirror_tags (table_id, lsn, tag, lake_snapshot_id, lake_props)
select c.table_id, %(lsn)s, %(tag)s, c.lake_snapshot_id, c.lake_props || jsonb_build_object('as_of', m.as_of)
  from modak.cutline c join modak.mirrors m using (table_id) where c.table_id = any (%(ids)s) and c.replicated_lsn = %(lsn)s
on conflict do nothing;

-- name: drop_tags
delete from modak.mirror_tags g
 where g.table_id = any (%(ids)s)
   and g.lsn not in (select distinct k.lsn from modak.mirror_tags k where k.table_id = any (%(ids)s) order by k.lsn desc limit %(limit)s)
   and not exists (select from modak.mirror_moments m where m.lsn_number = g.lsn and m.kept_until > now());

-- name: forget_tags
delete from modak.mirror_tags where table_id = %(table_id)s;
