-- Every row goes to the lake (-1), if it can hold it.
with marked as (
    update {stage} s set _modak_set = case when {to_lake} then -1 else -2 end
    returning s._modak_set as number, s._modak_line as line, {canonical} as key
)
select count(*) as n, min(m.key) as low, max(m.key) as high, min(m.line) filter (where m.number = -2) as unfit from marked m;
