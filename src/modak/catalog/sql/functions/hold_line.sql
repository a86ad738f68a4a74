-- The seam, held until the transaction ends: a publication waits for this writer, or this writer sees its result. A writer whose
-- snapshot is older than a publication gets 40001. The shared lock comes first, in the order of the publication itself.
create or replace function modak.hold_line(
    p_table_id bigint, out line bigint, out floor_line bigint, out revision bigint, out snapshot bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_advisory_xact_lock_shared(x'6d6400000000'::bigint + p_table_id);
    select c.tier_key_hi, c.retention_line, c.revision, c.lake_snapshot_id into line, floor_line, revision, snapshot
      from modak.cutline c where c.table_id = p_table_id for share;
end
$$;
