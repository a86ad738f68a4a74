-- name: list_profiles
select profile_name, lake_format, warehouse, lake_config, credential_ref, is_default,
       (select count(*) from modak.tables t where t.storage_profile = p.profile_name)
       + (select count(*) from modak.decoupled d where d.storage_profile = p.profile_name) as tables
  from modak.storage_profiles p order by not is_default, profile_name;

-- name: find_profile
select profile_name, lake_format, warehouse, lake_config, credential_ref, is_default
  from modak.storage_profiles where profile_name = %(profile_name)s;

-- name: find_default_profile
select profile_name, lake_format, warehouse, lake_config, credential_ref, is_default
  from modak.storage_profiles where is_default;

-- name: clear_default_profile
update modak.storage_profiles set is_default = false where is_default and profile_name <> %(profile_name)s;

-- name: upsert_profile
insert into modak.storage_profiles (profile_name, warehouse, lake_config, credential_ref, is_default)
values (%(profile_name)s, %(warehouse)s, %(lake_config)s, %(credential_ref)s, %(is_default)s)
on conflict (profile_name) do update
   set warehouse = excluded.warehouse, lake_config = excluded.lake_config, credential_ref = excluded.credential_ref,
       is_default = excluded.is_default;

-- name: delete_profile
delete from modak.storage_profiles where profile_name = %(profile_name)s;

-- name: read_storage_secret
select key, secret from modak.storage_secret();
