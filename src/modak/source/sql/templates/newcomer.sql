-- On a partition that Modak has not looked at yet. Below T the name would not show its rows: so none comes in.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $body$
declare
    line bigint;
begin
    -- Whoever makes a partition has to be able to call this function, and so anybody can. It is for this table's partitions.
    if pg_partition_root(tg_relid)::oid is distinct from {table_id}::oid then
        return null;
    end if;
    -- FOR SHARE: a writer whose snapshot is older than a publication gets 40001 instead of acting on the old line.
    select c.tier_key_hi into line from modak.cutline c where c.table_id = {table_id} for share;
    -- Below it the partitions have other triggers that Modak put there; this one is on again where somebody enabled all that the heap has.
    if {canonical_new} < line and not exists (
        select from pg_trigger t where t.tgrelid = tg_relid and t.tgname in ('modak_mirror', 'modak_capture') and t.tgenabled <> 'D'
    ) then
        raise exception 'partition % of table "%" lies below the cut-line, where nobody would see its rows', tg_relid::regclass, {table_text}
            using errcode = '55000', table = tg_table_name, schema = tg_table_schema,
                  hint = format('Drop it, or detach it: rows this old need no partition. ALTER TABLE %s DETACH PARTITION %s',
                                {table_id}::oid::regclass, tg_relid::regclass);
    end if;
    return null;
end
$body$;
