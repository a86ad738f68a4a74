-- One table out of three: the heap from T on, the lake as it stands at S, and the corrections of the latter.
-- The arms are bare and the conditions stand above them on a tag that is constant in each arm: then Postgres plans the arms as it plans
-- partitions, with index conditions, joins by key, sort orders and run-time pruning in every one of them.
-- The cold arm needs no T of its own: the lake at S never holds a row from T on. Each sub-select here is planned with every statement,
-- so there are no more of them than must be.
create or replace view {view} as
select {columns} from (
    select 'h'::"char" as _modak_arm, 0::smallint as _modak_op, 0::bigint as _modak_pin, {hot} from {heap} h
    union all
    select 'c'::"char", 0::smallint, c._modak_pin, {cold} from {cold_table} c
    union all
    select 'd'::"char", d.op, 0::bigint, {corrected} from {delta} d
) u
where (u._modak_arm = 'h' and u.{tier_key} >= (select {line} from modak.cutline s where s.table_id = {table_id}))
       -- Not a filter: it tells the gateway which snapshot to scan.
   or (u._modak_arm = 'c' and u._modak_pin <> (select s.lake_snapshot_id from modak.cutline s where s.table_id = {table_id})
       -- NOT EXISTS, in words that do not make Postgres expect half of the rows to be corrected. Without any correction nothing is looked up.
       and nullif(exists (select from {delta}) and exists (select from {delta} x where x.table_id = {table_id} and x.pk = {pk}), true)
           is not null)
   or (u._modak_arm = 'd' and u._modak_op = 0);
