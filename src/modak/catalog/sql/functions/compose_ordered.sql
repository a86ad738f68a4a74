-- Behind modak.write_orders: composes what is ordered there, for those who may write to the table. The view's default names who orders, by
-- current_user where the order is given; an argument could be made up, and inside a function that runs as its owner nobody else is seen.
create or replace function modak.compose_ordered() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    target modak.tables := modak.find_registered(new.name, new.relation);
    view oid := to_regclass(format('%I.%I', target.schema_name, target.view_name));
    may boolean := case when new.kind = 'delete' then has_table_privilege(new.caller::name, view, 'DELETE')
                        else has_any_column_privilege(new.caller::name, view, 'INSERT, UPDATE') end;
begin
    if not may then
        raise exception 'permission denied for view %', target.view_name using errcode = 'insufficient_privilege';
    end if;
    select c.key_name, c.steps into new.key_name, new.steps from modak.compose_write(new.kind, new.name, new.relation, new.given) c;
    return new;
end
$$;
-- Here and not among the views, because modak_delete and modak_upsert are parsed when they are made, and it must be there by then.
create or replace view modak.write_orders as
select null::text as kind, null::text as name, null::regclass as relation, null::jsonb as given, null::text as caller,
       null::text as key_name, null::text[] as steps
 where false;
comment on view modak.write_orders is 'Where modak_upsert and modak_delete order their statements: a row is never kept, only answered.';
alter view modak.write_orders alter column caller set default current_user;
create or replace trigger compose instead of insert on modak.write_orders for each row execute function modak.compose_ordered();
-- Not the caller: it is whoever it is.
grant insert (kind, name, relation, given), select (key_name, steps) on modak.write_orders to public;
