-- Before a pin is kept: whether it was made of the cut-line as its statement sees it. STABLE is the point of this function: its query looks
-- through the snapshot of that statement.
create or replace function modak.note_pin() returns trigger
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform set_config('modak.pin_seen', (
        select (c.lake_snapshot_id is not distinct from new.pinned_lake_snapshot_id and c.tier_key_hi = new.pinned_tier_key_hi)::text
          from modak.cutline c where c.table_id = new.table_id), true);
    return new;
end
$$;
create or replace trigger note_pin before insert on modak.read_pins for each row execute function modak.note_pin();
