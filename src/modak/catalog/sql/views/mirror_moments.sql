-- Moments of mirrored tables that have a name in Iceberg. Any of the newest ten may go with the next pass; the first one of each minute stays for an
-- hour, so that a query of an engine outside can take its time.
create or replace view modak.mirror_moments as
select '0/0'::pg_lsn + g.lsn::numeric as lsn,
       min(g.tag) as tag,
       array_agg(format('%I.%I', t.schema_name, t.table_name) order by t.schema_name, t.table_name) as tables,
       min(coalesce((g.lake_props->>'as_of')::timestamptz, g.created_at)) as as_of,
       min(g.created_at) as created_at,
       case when row_number() over (partition by date_bin('1 minute', min(g.created_at), 'epoch') order by g.lsn) = 1
            then min(g.created_at) + interval '1 hour' end as kept_until,
       g.lsn as lsn_number
  from modak.mirror_tags g join modak.tables t using (table_id)
 group by g.lsn;

comment on view modak.mirror_moments is 'Places in the WAL at which mirrored tables can be read together, in any engine, by the Iceberg tag.';
comment on column modak.mirror_moments.tables is 'Tables that have the tag.';
comment on column modak.mirror_moments.as_of is 'The time that the moment stands for.';
comment on column modak.mirror_moments.kept_until is 'The tag stays until then, at least. NULL: while it is one of the newest ten.';
