-- A row that arrives twice replaces itself: a subscription made anew may send again what was applied before, and must not stop over it.
create or replace function modak.replace_applied() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_table_name = 'claims' then
        delete from modak.claims c where c.iceberg_table = new.iceberg_table and c.ticket = new.ticket and c.node = new.node;
    elsif tg_table_name = 'shared_tables' then
        delete from modak.shared_tables s where s.node = new.node and s.table_id = new.table_id;
    else
        delete from modak.claim_acks a
         where a.iceberg_table = new.iceberg_table and a.ticket = new.ticket and a.node = new.node and a.ack_from_node = new.ack_from_node;
    end if;
    return new;
end
$$;

drop trigger if exists replace_applied on modak.claims;
create trigger replace_applied before insert on modak.claims for each row execute function modak.replace_applied();
alter table modak.claims enable replica trigger replace_applied;

drop trigger if exists replace_applied on modak.claim_acks;
create trigger replace_applied before insert on modak.claim_acks for each row execute function modak.replace_applied();
alter table modak.claim_acks enable replica trigger replace_applied;

drop trigger if exists replace_applied on modak.shared_tables;
create trigger replace_applied before insert on modak.shared_tables for each row execute function modak.replace_applied();
alter table modak.shared_tables enable replica trigger replace_applied;
