-- Whether this transaction has locked or changed a row, by the id the row has of whoever did; maybe together with others, or in several of its
-- own subtransactions: these share an id of another kind.
create or replace function modak.has_locked(holder xid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return modak.is_own_change(holder) or exists (select from pg_get_multixact_members(holder) m where modak.is_own_change(m.xid));
exception when others then
    -- No id of that kind.
    return false;
end
$$;
