-- One table out of three: the heap from T on, the lake below T as it stands at S, and the corrections of the latter.
-- The arms are bare and the conditions stand above them on a tag that is constant in each arm: then Postgres plans the arms as it plans
-- partitions, with index conditions, joins by key, sort orders and run-time pruning in every one of them.
create or replace view {view} as
select {columns} from (
    select (-1)::smallint as _modak_arm, 0::bigint as _modak_pin, {hot} from {heap} h
    union all
    select (-2)::smallint, c._modak_pin, {cold} from {cold_table} c
    union all
    select d.op, 0::bigint, {corrected} from {delta} d
) u
where (u._modak_arm = -1 and u.{tier_key} >= (select {line} from modak.cutline s where s.table_id = {table_id}))
   or (u._modak_arm = -2 and u.{tier_key} < (select {line} from modak.cutline s where s.table_id = {table_id})
       -- Not a filter: it tells the gateway which snapshot to scan.
       and u._modak_pin <> (select s.lake_snapshot_id from modak.cutline s where s.table_id = {table_id})
       -- The first test is made once per statement: without corrections no row pays for the second.
       and ((select not exists (select from {delta})) or not exists (select from {delta} x where x.table_id = {table_id} and x.pk = {pk})))
   or u._modak_arm = 0;
