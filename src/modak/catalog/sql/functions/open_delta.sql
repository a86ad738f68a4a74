-- A table's own partition of the delta, whose owner may do there what he may do with the rows it speaks of.
-- Runs as the catalog's owner, since a partition can be attached by nobody else; the caller must have the rights of the table's owner.
create or replace function modak.open_delta(p_table_id bigint) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    keeper oid := (select c.relowner from pg_class c where c.oid = p_table_id::oid and c.relkind in ('r', 'p'));
    part text := 'delta_' || p_table_id;
begin
    if keeper is null or not pg_has_role(session_user, keeper, 'usage') then
        raise exception 'only the owner of a table opens its delta' using errcode = '42501';
    end if;
    execute format('create table modak.%I (like modak.delta including all)', part);
    execute format('alter table modak.delta attach partition modak.%I for values in (%s)', part, p_table_id);
    -- Never analysed, an empty table is taken for ten pages; every plan of the view would pay for them.
    execute format('analyze modak.%I', part);
    if keeper <> (select c.relowner from pg_class c where c.oid = 'modak.delta'::regclass) then
        execute format('grant usage on schema modak to %s', keeper::regrole);
        execute format('grant select, insert, update, delete on modak.%I to %s', part, keeper::regrole);
        execute format('grant select on modak.cutline to %s', keeper::regrole);
        execute format('grant usage on sequence modak.delta_version to %s', keeper::regrole);
        execute format('grant execute on function modak.hold_line(bigint) to %s', keeper::regrole);
    end if;
    if to_regrole('modak_worker') is not null then
        execute format('grant select, insert, update, delete on modak.%I to modak_worker', part);
    end if;
end
$$;
