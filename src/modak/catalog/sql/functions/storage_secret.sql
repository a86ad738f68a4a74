-- What modak.set_storage_secret was given, for gateways and workers. No row if nothing was, or if this database was restored from a dump, which
-- has only one half of it. As the catalog's owner, who alone sees the mapping.
create or replace function modak.storage_secret() returns table (key text, secret text)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    stored text;
    pad text;
begin
    select max(substr(o.option, 6)) filter (where o.option like 'user=%'), max(substr(o.option, 10)) filter (where o.option like 'password=%')
      into key, stored
      from pg_user_mappings m, unnest(m.umoptions) o(option)
     where m.srvname = 'modak_storage' and m.usename = 'public';
    -- Set before there were two halves.
    secret := stored;
    if stored like 'padded:%' then
        select split_part(one, '=', 2) into pad
          from pg_db_role_setting s, unnest(s.setconfig) one
         where s.setdatabase = (select d.oid from pg_database d where d.datname = current_database())
           and s.setrole = (select c.relowner from pg_class c where c.oid = 'modak.tables'::regclass)
           and one like 'modak.storage\_pad=%';
        secret := null;
        if length(pad) = length(stored) - 7 then
            secret := convert_from(modak.xor_bytes(decode(substr(stored, 8), 'hex'), decode(pad, 'hex')), 'UTF8');
        end if;
    end if;
    if secret is not null then
        return next;
    end if;
end
$$;
