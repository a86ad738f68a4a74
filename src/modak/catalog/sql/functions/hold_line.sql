-- T and R, held until the transaction ends: the advance waits for this writer, or this writer sees its result. A writer whose
-- snapshot is older than an advance gets 40001. The shared lock comes first, in the order of the advance itself.
create or replace function modak.hold_line(p_table_id bigint, out line bigint, out floor_line bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock_shared(x'6d6400000000'::bigint + p_table_id);
    select c.tier_key_hi, c.retention_line into line, floor_line from modak.cutline c where c.table_id = p_table_id for share;
end
$$;
