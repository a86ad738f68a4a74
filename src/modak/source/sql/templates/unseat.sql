-- Take a row that only the lake has, or a correction without a heap row, out of sight. False: somebody removed it before.
-- A correction that is not what the statement saw was made meanwhile, and overwriting it would lose it.
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
    seen_pk text := {pk_seen};
    seen_key bigint := {canonical_seen};
begin
    select * into held from modak.hold_line({table_id});
    if seen_key >= held.line then
        return false;
    end if;
    if seen_key < held.floor_line then
        raise exception 'row of table "%" with % = % lies below the retention line', {table_text}, {tier_key_text}, seen.{tier_key}
            using errcode = '22008', hint = 'Rows this old have expired and are not taken back.';
    end if;
    loop
        insert into {delta} (table_id, pk, op, tier_key, payload, placed) values ({table_id}, seen_pk, 1, seen_key, {key_image_seen}, true)
            on conflict (table_id, pk) do nothing;
        if found then
            return true;
        end if;
        select * into known from {delta} d where d.table_id = {table_id} and d.pk = seen_pk for update;
        exit when found;
    end loop;
    if known.op = 1 then
        return false;
    end if;
    if not (select record_image_eq(row({corrected}), row({seen_columns})) from (select known.payload) d) then
        raise exception 'could not serialize access due to concurrent update of table "%"', {table_text}
            using errcode = '40001', hint = 'Run the transaction again.';
    end if;
    update {delta} d
       set op = 1, tier_key = seen_key, payload = {key_image_seen}, version = nextval('modak.delta_version'),
           old_tier_key = nullif(coalesce(d.old_tier_key, d.tier_key), seen_key)
     where d.table_id = {table_id} and d.pk = seen_pk;
    return true;
end
$body$;
