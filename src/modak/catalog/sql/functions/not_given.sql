-- Refuse a value for an identity column that is generated always, as the heap itself would; true where none was given.
create or replace function modak.not_given(value bigint, column_name text) returns boolean
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is not null then
        raise exception 'cannot insert a non-DEFAULT value into column "%"', column_name
            using errcode = '428C9', detail = format('Column "%s" is an identity column defined as GENERATED ALWAYS.', column_name);
    end if;
    return true;
end
$$;
