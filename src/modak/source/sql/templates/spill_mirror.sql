-- What stands in the spill is cold: the delta carries it for every reader of the seam, and follows each change of it.
create function modak.{function}() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
begin
    if tg_op = 'DELETE' or (tg_op = 'UPDATE' and ({pk_old}) <> ({pk_new})) then
        insert into modak.delta as d (table_id, pk, op, tier_key, payload)
        values ({table_id}, {pk_old}, 1, {canonical_old}, null)
        on conflict (table_id, pk) do update
           set op = 1, tier_key = excluded.tier_key, old_tier_key = coalesce(d.old_tier_key, d.tier_key), payload = null,
               version = nextval('modak.delta_version');
    end if;
    if tg_op <> 'DELETE' then
        insert into modak.delta as d (table_id, pk, op, tier_key, payload)
        values ({table_id}, {pk_new}, 0, {canonical_new}, {image_new})
        on conflict (table_id, pk) do update
           set op = 0, tier_key = excluded.tier_key,
               old_tier_key = case when d.tier_key = excluded.tier_key then d.old_tier_key else coalesce(d.old_tier_key, d.tier_key) end,
               payload = excluded.payload, version = nextval('modak.delta_version');
    end if;
    return null;
end
$body$;
