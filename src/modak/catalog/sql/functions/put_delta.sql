-- One correction of a cold row, newest wins. lake_key is where the lake holds the row now, if that is known to be elsewhere;
-- through a chain of moves the first place is kept, because the fold must delete there. placed: the writer has seen the lake's row there.
create or replace function modak.put_delta(
    p_table_id bigint, p_pk text, p_op smallint, p_tier_key bigint, p_lake_key bigint, p_payload jsonb,
    p_placed boolean default false
) returns boolean
language sql
set search_path = pg_catalog, pg_temp
as $$
    insert into modak.delta as d (table_id, pk, op, tier_key, old_tier_key, payload, placed)
    values (p_table_id, p_pk, p_op, p_tier_key, nullif(p_lake_key, p_tier_key), p_payload, p_placed)
    on conflict (table_id, pk) do update
       set op = excluded.op,
           tier_key = excluded.tier_key,
           old_tier_key = nullif(coalesce(d.old_tier_key, d.tier_key), excluded.tier_key),
           payload = excluded.payload,
           version = nextval('modak.delta_version')
    returning true
$$;
