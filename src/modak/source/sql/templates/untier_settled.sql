-- What the heap says from now on needs no correction. Of a row whose older place stays in the lake, or may be there, a tombstone remains.
with settled as (
    delete from {delta} d
     where d.table_id = {table_id}
       and (d.tier_key >= {line} or d.op = 1) and (not {cold_left} or ({placed} and {place} >= {line}))
    returning d.pk
), hidden as (
    update {delta} d
       set op = 1, tier_key = least({place}, {below}), old_tier_key = null, version = nextval('modak.delta_version'),
           payload = (select jsonb_object_agg(k.name, d.payload -> k.name) from unnest({key_names}::text[]) k(name)
                       where d.payload is not null)
     where d.table_id = {table_id} and d.tier_key >= {line} and {cold_left} and not ({placed} and {place} >= {line})
    returning d.pk
), moved as (
    -- The lake has nothing at the older place any more.
    update {delta} d set old_tier_key = null
     where d.table_id = {table_id} and d.tier_key < {line} and d.old_tier_key >= {line} and (d.op = 0 or ({cold_left} and not {placed}))
    returning d.pk
)
select (select count(*) from settled) as settled, (select count(*) from hidden) as hidden, (select count(*) from moved) as moved;
