-- Take a row that only the lake has, or a correction without a heap row, out of sight. False: it is not there any more; what
-- became of it is found out at the end of the statement, by what is noted here. A tombstone whose row was deleted, and did not move to another key or tier, says so under a name no column can have.
-- What was corrected since the statement looked stands in the delta. What was corrected and folded since then stands in the lake alone:
-- so where the seam is not the one the statement saw, the lake is asked for the row as it is now.
create or replace function modak.{function}(seen {heap}, going boolean) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
declare
    held record;
    known {delta};
    maker xid;
    moved boolean;
    stands boolean := true;
    unchanged boolean;
    verdict text := 'unknown';
    tombstone jsonb := case when going then {key_image_seen} || jsonb_build_object('', 'deleted') else {key_image_seen} end;
    seen_pk text := {pk_seen};
    seen_key bigint := {canonical_seen};
begin
    -- Whom this waits for nobody can see beforehand.
    perform modak.{watch}(null);
    select * into held from modak.hold_line({table_id});
    moved := not coalesce(starts_with(current_setting({setting}, true), concat(held.revision, '/', held.line, '/')), false);
    if seen_key < held.floor_line then
        raise exception 'row of table "%" with % = % lies below the retention line', {table_text}, {tier_key_text}, seen.{tier_key}
            using errcode = '22008', hint = 'Rows this old have expired and are not taken back.';
    end if;
    if seen_key < held.line then
        if moved and not exists (select from {delta} d where d.table_id = {table_id} and d.pk = seen_pk) then
            select modak.{same}(row({lake_columns})::{heap}, seen) into unchanged
              from {cold} c where {lake_is_seen} and c._modak_pin <> held.snapshot;
            stands := found;
            if not unchanged then
                perform modak.allow_own_change({table_id}, {table_text}, null);
            end if;
        end if;
        while stands loop
            insert into {delta} (table_id, pk, op, tier_key, payload, placed)
            values ({table_id}, seen_pk, 1, seen_key, tombstone, true)
                on conflict (table_id, pk) do nothing;
            if found then
                return true;
            end if;
            select * into known from {delta} d where d.table_id = {table_id} and d.pk = seen_pk for update;
            continue when not found;
            select d.xmin into maker from {delta} d where d.table_id = {table_id} and d.pk = seen_pk;
            if known.op = 1 and not modak.is_own_change(maker) then
                verdict := case when known.payload ? '' then 'deleted' else 'moved' end;
                exit;
            end if;
            if known.op = 1 or not (select modak.{same}(row({corrected})::{heap}, seen) from (select known.payload) d) then
                perform modak.allow_own_change({table_id}, {table_text}, maker);
                return false;
            end if;
            update {delta} d
               set op = 1, tier_key = seen_key, payload = tombstone, version = nextval('modak.delta_version'),
                   old_tier_key = nullif(coalesce(d.old_tier_key, d.tier_key), seen_key)
             where d.table_id = {table_id} and d.pk = seen_pk;
            return true;
        end loop;
    end if;
    perform modak.note_missed({table_id}, {table_text}, jsonb_build_object(
        'nested', split_part(current_setting({setting}, true), ' ', 1) like '%+', 'verdict', verdict,
        'met', current_setting({met}, true), 'row', seen::text));
    return false;
end
$body$;
