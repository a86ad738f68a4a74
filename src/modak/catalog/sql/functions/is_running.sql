-- Whether whoever has locked or changed a row may still be at it; true where that cannot be told. NULL stands for somebody who is not known yet.
create or replace function modak.is_running(holder xid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A row leaves out the epoch of a transaction's id: the one nearest to now.
    nearest bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    full_id xid8;
begin
    if holder is null then
        return true;
    end if;
    full_id := (nearest + (((holder::text::bigint - nearest + 2147483648) & 4294967295) - 2147483648))::text::xid8;
    return coalesce(pg_xact_status(full_id) = 'in progress', false);
exception when invalid_parameter_value then
    -- No transaction's id: several who have locked the row share one of another kind.
    return true;
end
$$;
