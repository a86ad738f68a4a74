-- A pin that holds corrections and a publication that clears some must not overlap: the publication waits for the transaction that makes the
-- pin and then sees it, or the pin waits for the publication. Its statement may have looked at the cut-line before that, so it is given the
-- newer seam. Pins of other tables are none of the publication's business.
create or replace function modak.hold_pin() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not new.holds_delta then
        return new;
    end if;
    perform pg_advisory_xact_lock_shared(x'6d7000000000'::bigint + new.table_id);
    if current_setting('modak.pin_seen', true) = 'true' then
        select c.tier_key_hi, c.lake_snapshot_id into new.pinned_tier_key_hi, new.pinned_lake_snapshot_id
          from modak.cutline c where c.table_id = new.table_id;
    end if;
    return new;
end
$$;
create or replace trigger then_hold_pin before insert on modak.read_pins for each row execute function modak.hold_pin();
