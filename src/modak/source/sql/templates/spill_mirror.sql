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
        perform modak.put_delta({table_id}, {pk_old}, 1::smallint, {canonical_old}, null, {key_image_old});
    end if;
    if tg_op <> 'DELETE' then
        perform modak.put_delta({table_id}, {pk_new}, 0::smallint, {canonical_new}, null, {image_new});
    end if;
    return null;
end
$body$;
