-- R rises. What a correction says below it is over, and so is everything the lake held there; four cases are left to tell apart.
with gone as (
    -- Nothing more to correct: the lake's row went with R, or was deleted by the commit that goes with this. Or never was.
    delete from {delta} d
     where d.table_id = {table_id}
       and (d.tier_key < {line} and ({searched} or ({place} < {line} and {placed})) or (d.op = 1 and {place} < {line} and {placed}))
    returning 1
), uprooted as (
    -- The row came up from below and stays; where it came from, there is nothing any more.
    update {delta} d set old_tier_key = null
     where d.table_id = {table_id} and d.tier_key >= {line} and d.old_tier_key < {line} and not (d.op = 1 and {placed})
    returning 1
), unseated as (
    -- The row went down, and the lake holds an older image of it at or above R, or may: that must not rise again. The version stays,
    -- so that a load which is newer still wins.
    update {delta} d
       set op = 1, tier_key = greatest({place}, {line}), old_tier_key = null,
           payload = (select jsonb_object_agg(e.key, e.value) from jsonb_each(d.payload) e where e.key = any({key_columns}))
     where d.table_id = {table_id} and d.tier_key < {line} and not {searched} and not ({place} < {line} and {placed})
    returning 1
)
select (select count(*) from gone) + (select count(*) from unseated) as n, (select count(*) from uprooted) as uprooted;
