-- Whole cold rows that need not pass through the heap: no copy stands there and no partition waits for them. To the lake (-1), if it can
-- hold them, or to the delta (-2).
with marked as (
    update {stage} s set _modak_set = case when {to_lake} then -1 else -2 end
     where {is_whole} and {cold} and ({in_spill}) and not exists (select from {heap} h where {heap_has_key})
    returning s._modak_set as number, {canonical} as key
)
select count(*) as n,
       count(*) filter (where m.number = -1) as spooled,
       min(m.key) filter (where m.number = -1) as low,
       max(m.key) filter (where m.number = -1) as high
  from marked m;
