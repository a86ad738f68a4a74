-- This node's row, locked to the end of the transaction, with the clock at least at what was heard. Whoever claims, answers, grants or
-- releases does so below this lock: a decision to defer and a release can never miss each other.
create or replace function modak.lock_node(heard bigint default 0) returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    me text;
begin
    update modak.nodes n set clock = greatest(n.clock, heard) where n.is_self returning n.node_name into me;
    -- A peer hears of what is flushed: at once, and not when the WAL writer comes by. Alone there is nobody to hear it, and a crash
    -- of the server ends every claim.
    perform set_config('synchronous_commit', case when exists (select from modak.nodes n where not n.is_self) then 'local' else 'off' end, true);
    return me;
end
$$;
