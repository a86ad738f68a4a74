-- What stands in the spill is cold: the delta carries it for every reader of the seam, and follows each change of it.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
begin
    -- The fold takes away what the lake has by now; nobody deleted it.
    if tg_op = 'DELETE' and current_setting('modak.folding', true) = '{table_id}' then
        return null;
    end if;
    -- A column this function does not know would be missing from the correction.
    if (select count(*) from pg_attribute a where a.attrelid = tg_relid and a.attnum > 0 and not a.attisdropped) <> {column_count} then
        raise exception 'the columns of table "%" changed, and its cold rows cannot be written before Modak knows them', {table_text}
            using errcode = '55000', hint = 'Run: modak tier';
    end if;
    if tg_op = 'DELETE' or (tg_op = 'UPDATE' and ({pk_old}) <> ({pk_new})) then
        perform modak.put_delta({table_id}, {pk_old}, 1::smallint, {canonical_old}, null, {key_image_old});
    end if;
    if tg_op <> 'DELETE' then
        perform modak.put_delta({table_id}, {pk_new}, 0::smallint, {canonical_new}, null, {image_new});
    end if;
    return null;
end
$body$;
