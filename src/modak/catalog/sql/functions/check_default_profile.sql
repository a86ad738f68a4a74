-- The partial unique index allows at most one default profile; this asks, at commit, for at least one.
create or replace function modak.check_default_profile() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from modak.storage_profiles where is_default) then
        raise exception 'one storage profile must be the default'
            using errcode = '23514', hint = 'Set is_default on another profile in the same transaction.';
    end if;
    return null;
end
$$;
drop trigger if exists check_default_profile on modak.storage_profiles;
create constraint trigger check_default_profile after insert or update or delete on modak.storage_profiles
    deferrable initially deferred
    for each row execute function modak.check_default_profile();
