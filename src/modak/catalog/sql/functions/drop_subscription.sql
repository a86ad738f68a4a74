-- Drop a subscription and leave its slot to the node that has it: dropping that, too, is not possible inside a transaction.
create or replace function modak.drop_subscription(subscription text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from pg_subscription s join pg_database d on d.oid = s.subdbid where s.subname = subscription and d.datname = current_database()) then
        execute format('alter subscription %I disable', subscription);
        execute format('alter subscription %I set (slot_name = none)', subscription);
        execute format('drop subscription %I', subscription);
    end if;
end
$$;
