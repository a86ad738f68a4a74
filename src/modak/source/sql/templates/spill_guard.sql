-- The spill takes rows that fit no partition. Below T they are corrections of the cold tier; anything else is the user's mistake.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $body$
declare
    line bigint;
    floor_line bigint;
    row_key bigint;
begin
    -- The fold and retention take away what the lake has, or what has expired; nobody deleted it.
    if tg_op = 'DELETE' and current_setting('modak.folding', true) = '{table_id}' then
        return null;
    end if;
    -- FOR SHARE: a writer whose snapshot is older than a publication gets 40001 instead of acting on the old line.
    select c.tier_key_hi, c.retention_line into line, floor_line from modak.cutline c where c.table_id = {table_id} for share;
    if not found then
        return new;
    end if;
    if tg_op <> 'INSERT' then
        if {canonical_old} < floor_line then
            raise exception 'row of table "%" with % = % lies below the retention line', {table_text}, {tier_key_text}, old.{tier_key}
                using errcode = '22008', hint = 'Rows this old have expired and are not taken back.';
        end if;
        if tg_op = 'DELETE' then
            return null;
        end if;
    end if;
    if new.{tier_key} is null then
        raise exception 'null value in tier key "%" of "%"', {tier_key_text}, {table_text} using errcode = '23502';
    end if;
    if not {is_finite} then
        raise exception 'tier key "%" of "%" cannot be infinite', {tier_key_text}, {table_text} using errcode = '22008';
    end if;
    row_key := {canonical_new};
    if row_key >= line then
        raise exception 'no partition of table "%" for % = %', {table_text}, {tier_key_text}, new.{tier_key}
            using errcode = '23514', hint = 'Create the partition first.';
    end if;
    if row_key < floor_line then
        raise exception 'row of table "%" with % = % lies below the retention line', {table_text}, {tier_key_text}, new.{tier_key}
            using errcode = '22008', hint = 'Rows this old have expired and are not taken back.';
    end if;
    return new;
end
$body$;
