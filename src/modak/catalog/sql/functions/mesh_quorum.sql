-- How many nodes must not have heard a peer before its answer is dispensed with, and how many a writer must hear: modak.mesh_quorum.
--   half      half of them, rounded up: of two nodes either goes on alone, so a cut between two halves is left to the Iceberg catalog
--   majority  more than half: two halves never both go on
--   all       every one: nobody goes on without everybody
create or replace function modak.mesh_quorum() returns integer
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    nodes integer := (select count(*) from modak.nodes);
    rule text := coalesce(nullif(current_setting('modak.mesh_quorum', true), ''), 'half');
begin
    if rule not in ('half', 'majority', 'all') then
        raise exception 'modak.mesh_quorum is "%"', rule using errcode = '22023', hint = 'It takes half, majority or all.';
    end if;
    return case rule when 'half' then (nodes + 1) / 2 when 'majority' then nodes / 2 + 1 else nodes end;
end
$$;
