-- Whether two rows say the same though their bytes differ: a value that went through its text may be stored otherwise, as an array is that
-- once held a NULL.
create or replace function modak.{function}(one {heap}, other {heap}) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
    select record_image_eq(one, other) or {image_one} = {image_other}
$body$;
