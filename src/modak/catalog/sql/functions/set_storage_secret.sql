-- The object store's key and secret for the default storage profile, for gateways and workers whose environment has none. All NULL forgets them.
-- Kept in two halves, of which neither says anything alone: the secret XORed with as many random bytes goes to a user mapping, which only the
-- catalog's owner and superusers can read, and these bytes to a setting of the owner in this database, which a dump of it does not have.
create or replace function modak.set_storage_secret(key text, secret text, endpoint text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set client_min_messages = warning
set standard_conforming_strings = on
as $$
declare
    keeper text := (select c.relowner::regrole::text from pg_class c where c.oid = 'modak.tables'::regclass);
    bytes bytea := convert_to(secret, 'UTF8');
    pad bytea := '';
begin
    if (key is null) <> (secret is null) or key = '' or secret = '' then
        raise exception 'a key and its secret are set together' using errcode = 'invalid_parameter_value', hint = 'All NULL forgets them.';
    end if;
    if endpoint <> '' and endpoint !~ '^https?://[^/@[:space:]]+(/[^@[:space:]]*)?$' then
        raise exception 'the endpoint is not like http://host:port' using errcode = 'invalid_parameter_value', hint = 'NULL or '''' stands for AWS.';
    end if;
    drop user mapping if exists for public server modak_storage;
    if key is null then
        execute format('alter role %s in database %I reset modak.storage_pad', keeper, current_database());
    else
        while length(pad) < length(bytes) loop
            pad := pad || sha256(convert_to(concat(gen_random_uuid(), gen_random_uuid()), 'UTF8'));
        end loop;
        pad := substr(pad, 1, length(bytes));
        execute format('alter role %s in database %I set modak.storage_pad = %L', keeper, current_database(), encode(pad, 'hex'));
        execute format('create user mapping for public server modak_storage options (user %L, password %L)',
                       key, 'padded:' || encode(modak.xor_bytes(bytes, pad), 'hex'));
    end if;
    update modak.storage_profiles p
       set lake_config = case when endpoint <> '' then p.lake_config || jsonb_build_object('s3.endpoint', endpoint) else p.lake_config - 's3.endpoint' end
     where p.is_default;
end
$$;
