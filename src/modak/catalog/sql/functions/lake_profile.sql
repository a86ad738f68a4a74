-- A storage profile's name; NULL asks for the default.
create or replace function modak.lake_profile(p_profile text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    found text;
begin
    select p.profile_name into found
      from modak.storage_profiles p where case when p_profile is null then p.is_default else p.profile_name = p_profile end;
    if found is null then
        raise exception 'there is no storage profile "%"', p_profile
            using errcode = 'undefined_object', hint = 'Make one with `modak profile set`, or leave it out for the default one.';
    end if;
    return found;
end
$$;
