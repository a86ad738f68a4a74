-- Whether this transaction made a change, or one of its subtransactions, released ones included: those hold no lock of their own any more.
-- For the id of a change that a snapshot of this session shows, or that made a row vanish from one: everybody else who did has ended.
create or replace function modak.is_own_change(maker xid) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A row leaves out the epoch of a transaction's id: the one nearest to now.
    nearest bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    full_id xid8 := (nearest + (((maker::text::bigint - nearest + 2147483648) & 4294967295) - 2147483648))::text::xid8;
begin
    return pg_current_xact_id_if_assigned() is not null and pg_xact_status(full_id) = 'in progress';
exception when invalid_parameter_value then
    -- No transaction's id: several who had locked the row share one of another kind.
    return false;
end
$$;
