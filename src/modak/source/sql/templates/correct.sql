-- An UPDATE that keeps the key and the tier key of a row which only the lake has, on a heap that has triggers of INSERT and none of UPDATE. Coming back into the heap
-- would fire those, and on a plain table nothing fires: so the new image stands in the delta alone, and the heap's rules are asked without it.
-- False: it is not there any more, or the statement has met it before. since: the command since when rows were left as they were.
create or replace function modak.{function}(seen {heap}, made {heap}, since bigint) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
declare
    written cid;
begin
    if exists (select from {delta} d where d.table_id = {table_id} and d.pk = {pk_made} and d.op = 0 and d.cmin::text::bigint >= since
                  and modak.is_own_change(d.xmin)) or not modak.{unseat}(seen, false) then
        return false;
    end if;
    perform modak.check_rules({table_id}, made);
    update {delta} d set op = 0, payload = {image_made}, version = nextval('modak.delta_version')
     where d.table_id = {table_id} and d.pk = {pk_made};
    if since is null and record_image_eq(made, seen) then
        select d.cmin into written from {delta} d where d.table_id = {table_id} and d.pk = {pk_made};
        perform modak.note_unchanged({table_id}, written);
    end if;
    return true;
end
$body$;
