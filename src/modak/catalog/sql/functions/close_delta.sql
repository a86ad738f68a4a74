-- The end of a table's partition of the delta, when the table is unregistered or gone.
create or replace function modak.close_delta(p_table_id bigint) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    keeper oid := (select c.relowner from pg_class c where c.oid = p_table_id::oid and c.relkind in ('r', 'p'));
begin
    if keeper is not null and not pg_has_role(session_user, keeper, 'usage') then
        raise exception 'only the owner of a table closes its delta' using errcode = '42501';
    end if;
    execute format('drop table if exists modak.%I', 'delta_' || p_table_id);
end
$$;
