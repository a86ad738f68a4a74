-- For a moment the owner of a table may make things here, so that what is his can be given to him: Postgres asks that of a new owner.
-- Runs as the catalog's owner; the caller must have the rights of the table's owner. Says whether there was anything to lend.
create or replace function modak.lend_schema(p_table_id bigint, p_lent boolean) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    keeper oid := (select c.relowner from pg_class c where c.oid = p_table_id::oid and c.relkind in ('r', 'p'));
begin
    if keeper is null or not pg_has_role(session_user, keeper, 'usage') then
        raise exception 'only the owner of a table is lent the schema' using errcode = '42501';
    end if;
    if p_lent = has_schema_privilege(keeper, 'modak', 'create') then
        return false;
    end if;
    if p_lent then
        execute format('grant create on schema modak to %s', keeper::regrole);
    else
        execute format('revoke create on schema modak from %s', keeper::regrole);
    end if;
    return true;
end
$$;
