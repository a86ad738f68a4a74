-- The catalog is the arbiter of the seam: T, S and R never go back, whoever writes the row. T has one exception: the transaction that
-- publishes an untier names its operation, and may go to that operation's line and to no other.
create or replace function modak.check_cutline() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if new.tier_key_hi < old.tier_key_hi and not exists (
        select from modak.op_log o
         where o.op_id = current_setting('modak.untier', true) and o.table_id = old.table_id and o.op_kind = 'untier'
           and o.phase in ('flushing', 'committed')
           and (o.details->>'old_tier_key_hi')::bigint = old.tier_key_hi and (o.details->>'new_tier_key_hi')::bigint = new.tier_key_hi
    ) then
        raise exception 'cut-line of table % would move back from T=% to T=%', old.table_id, old.tier_key_hi, new.tier_key_hi
            using errcode = '55000', hint = 'T only rises; bring cold rows back with "modak untier".';
    end if;
    if old.lake_snapshot_id is not null
       and (new.lake_snapshot_id is null or new.lake_snapshot_id < old.lake_snapshot_id) then
        raise exception 'cut-line of table % would move back from S=% to S=%',
            old.table_id, old.lake_snapshot_id, coalesce(new.lake_snapshot_id::text, 'none')
            using errcode = '55000', hint = 'S only rises; a newer pass has published already.';
    end if;
    if old.retention_line is not null
       and (new.retention_line is null or new.retention_line < old.retention_line) then
        raise exception 'retention line of table % would move back from R=% to R=%',
            old.table_id, old.retention_line, coalesce(new.retention_line::text, 'none')
            using errcode = '55000', hint = 'Expired rows do not come back; R only rises.';
    end if;
    if new.lake_snapshot_id is not null and not (new.lake_props ? 'metadata_location' and new.lake_props ? 'snapshot_id') then
        raise exception 'cut-line of table % would publish S=% without its pointer', old.table_id, new.lake_snapshot_id
            using errcode = '55000', hint = 'lake_props must carry metadata_location and snapshot_id together with S.';
    end if;
    new.updated_at := clock_timestamp();
    return new;
end
$$;
drop trigger if exists check_cutline on modak.cutline;
create trigger check_cutline before update on modak.cutline
    for each row execute function modak.check_cutline();
