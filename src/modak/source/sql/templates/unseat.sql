-- Take a row that only the lake has, or a correction without a heap row, out of sight. False: it is not there any more.
-- What was corrected since the statement looked stands in the delta. What was corrected and folded since then stands in the lake alone:
-- so where the seam is not the one the statement saw, the lake is asked for the row as it is now.
create or replace function modak.{function}(seen {heap}) returns boolean
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
    seen_pk text := {pk_seen};
    seen_key bigint := {canonical_seen};
begin
    select * into held from modak.hold_line({table_id});
    moved := concat(held.revision, '/', held.line) is distinct from rtrim(split_part(current_setting({setting}, true), ' ', 1), '+');
    if seen_key < held.floor_line then
        raise exception 'row of table "%" with % = % lies below the retention line', {table_text}, {tier_key_text}, seen.{tier_key}
            using errcode = '22008', hint = 'Rows this old have expired and are not taken back.';
    end if;
    if seen_key < held.line then
        if moved and not exists (select from {delta} d where d.table_id = {table_id} and d.pk = seen_pk) then
            select record_image_eq(row({lake_columns}), row({seen_columns})) into unchanged
              from {cold} c where {lake_is_seen} and c._modak_pin <> held.snapshot;
            stands := found;
            if not unchanged then
                perform modak.allow_own_change({table_id}, {table_text}, null);
            end if;
        end if;
        while stands loop
            insert into {delta} (table_id, pk, op, tier_key, payload, placed)
            values ({table_id}, seen_pk, 1, seen_key, {key_image_seen}, true)
                on conflict (table_id, pk) do nothing;
            if found then
                return true;
            end if;
            select * into known from {delta} d where d.table_id = {table_id} and d.pk = seen_pk for update;
            continue when not found;
            exit when known.op = 1;
            if not (select record_image_eq(row({corrected}), row({seen_columns})) from (select known.payload) d) then
                select d.xmin into maker from {delta} d where d.table_id = {table_id} and d.pk = seen_pk;
                perform modak.allow_own_change({table_id}, {table_text}, maker);
                return false;
            end if;
            update {delta} d
               set op = 1, tier_key = seen_key, payload = {key_image_seen}, version = nextval('modak.delta_version'),
                   old_tier_key = nullif(coalesce(d.old_tier_key, d.tier_key), seen_key)
             where d.table_id = {table_id} and d.pk = seen_pk;
            return true;
        end loop;
    end if;
    {look_elsewhere}
    return false;
end
$body$;
