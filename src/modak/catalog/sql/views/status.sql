-- One row per table for people and dashboards. The first thirteen columns are a published contract; new ones go to the end.
create or replace view modak.status as
select t.table_id,
       t.schema_name,
       t.table_name,
       t.mode,
       c.tier_key_hi as cutline_t,
       c.lake_snapshot_id as cutline_s,
       c.replicated_lsn as mirror_frontier,
       c.retention_line,
       c.updated_at as cutline_updated_at,
       (select count(*) from modak.delta d where d.table_id = t.table_id) as delta_backlog,
       (select count(*) from modak.read_pins p where p.table_id = t.table_id and p.expires_at > now()) as read_pins,
       exists (select from modak.copy_progress g where g.table_id = t.table_id) as copying,
       (select coalesce(jsonb_object_agg(s.state, s.n), '{}')
          from (select p.state, count(*) as n from modak.partitions p where p.table_id = t.table_id group by p.state) s
       ) as partition_states,
       (select count(*) from modak.load_labels l where l.table_id = t.table_id and l.state = 'staged') as staged_loads,
       modak.key_text(c.tier_key_hi, t.tier_key_type) as cutline,
       modak.key_text(c.retention_line, t.tier_key_type) as retention,
       t.enabled,
       t.surface,
       (select jsonb_agg(jsonb_build_object('job', p.job, 'message', p.message, 'hint', p.hint, 'since', p.first_seen,
                                            'attempts', p.attempts, 'next_attempt', p.next_attempt)
                         order by p.first_seen)
          from (select p.table_id, p.job, p.message, p.hint, p.first_seen, p.attempts, p.next_attempt from modak.problems p
                union all
                select m.table_id, m.job, m.message, m.hint, m.first_seen, m.attempts, null from modak.missing_views m) p
         where p.table_id = t.table_id) as problems,
       (select jsonb_agg(jsonb_build_object(
                   'op_id', o.op_id, 'kind', o.op_kind, 'phase', o.phase, 'since', o.started_at,
                   'rows_done', (select coalesce(sum(g.rows_done), 0) from modak.op_progress g where g.op_id = o.op_id))
                         order by o.started_at)
          from modak.op_log o where o.table_id = t.table_id and o.phase in ('flushing', 'committed')) as operations
  from modak.tables t
  left join modak.cutline c using (table_id);
