-- On a partition that is sealed, being copied, or tiered and still standing. Before the line passes it, writes are recorded beside
-- the heap; afterwards they are corrections of cold rows.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
declare
    line bigint;
    floor_line bigint;
    old_key bigint;
    new_key bigint;
    old_pk text;
    new_pk text;
    moved boolean := false;
    expired text;
begin
    -- A row that an insert elsewhere replaced goes; nobody deleted it.
    if tg_op = 'DELETE' and current_setting('modak.folding', true) = '{table_id}' then
        return null;
    end if;
    -- A column this function does not know would be missing from the correction.
    if (select count(*) from pg_attribute a where a.attrelid = tg_relid and a.attnum > 0 and not a.attisdropped) <> {column_count} then
        raise exception 'the columns of table "%" changed, and its cold rows cannot be written before Modak knows them', {table_text}
            using errcode = '55000', hint = 'Run: modak tier';
    end if;
    -- FOR SHARE: the advance waits for this writer or this writer sees its result; an older snapshot gets 40001.
    select c.tier_key_hi, c.retention_line into line, floor_line from modak.cutline c where c.table_id = {table_id} for share;
    if not found then
        return null;
    end if;
    if tg_op <> 'INSERT' then
        old_key := {canonical_old};
        old_pk := {pk_old};
    end if;
    if tg_op <> 'DELETE' then
        new_key := {canonical_new};
        new_pk := {pk_new};
    end if;
    -- Expired rows whose copy still stands are nobody's any more: they may be cleared away, and not come back.
    if tg_op = 'DELETE' and old_key < floor_line then
        return null;
    end if;
    if tg_op = 'UPDATE' and old_key < floor_line then
        expired := old.{tier_key}::text;
    elsif new_key < floor_line then
        expired := new.{tier_key}::text;
    end if;
    if expired is not null then
        raise exception 'row of table "%" with % = % lies below the retention line', {table_text}, {tier_key_text}, expired
            using errcode = '22008', hint = 'Rows this old have expired and are not taken back.';
    end if;
    moved := tg_op = 'UPDATE' and old_pk = new_pk and old_key <> new_key;
    if tg_op = 'DELETE' or (tg_op = 'UPDATE' and (old_pk <> new_pk or (moved and old_key >= line))) then
        if old_key < line then
            perform modak.put_delta({table_id}, old_pk, 1::smallint, old_key, null, {key_image_old}, true);
        else
            insert into modak.captured (table_id, partition_id, pk, op, tier_key, payload)
            values ({table_id}, tg_relid::bigint, old_pk, 1, old_key, {key_image_old});
        end if;
    end if;
    if tg_op <> 'DELETE' then
        if new_key < line then
            perform modak.put_delta({table_id}, new_pk, 0::smallint, new_key, case when moved then old_key end, {image_new},
                                    tg_op = 'UPDATE' and old_pk = new_pk and old_key < line);
        else
            insert into modak.captured (table_id, partition_id, pk, op, tier_key, payload)
            values ({table_id}, tg_relid::bigint, new_pk, 0, new_key, {image_new});
        end if;
    end if;
    return null;
end
$body$;
