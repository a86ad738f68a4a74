-- Loads of the same keys take turns where no unique index stands between them. Buckets instead of keys, in order: few locks, no deadlock.
select count(pg_advisory_xact_lock({base}::bigint + b.bucket)) as n
  from (select distinct hashtextextended({pk}, 0) & {buckets} as bucket from {stage} s order by 1) b;
