-- Writing through a view, the heap's triggers run as the table's owner, where on a plain table they would run as the caller. So whoever has fewer
-- rights than the owner must have no say in what they do. A trigger that somebody else put there is refused; true where there are any at all,
-- and the caller's search path has to be kept from them.
create or replace function modak.guards_triggers(p_table_id bigint) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    keeper oid := (select c.relowner from pg_class c where c.oid = p_table_id::oid);
    caller oid := (select r.oid from pg_roles r
                    where r.rolname = case current_setting('role') when 'none' then session_user else current_setting('role')::name end);
    one record;
    are_there boolean := false;
begin
    if keeper is null or pg_has_role(caller, keeper, 'member') then
        return false;
    end if;
    for one in select t.tgname, t.tgrelid::regclass as relation, p.oid::regprocedure as routine, p.proowner
                 from pg_trigger t join pg_proc p on p.oid = t.tgfoid
                where not t.tgisinternal and t.tgenabled <> 'D' and t.tgparentid = 0 and p.pronamespace <> 'modak'::regnamespace
                  and (t.tgrelid = p_table_id::oid or pg_partition_root(t.tgrelid)::oid = p_table_id::oid) loop
        are_there := true;
        if not pg_has_role(one.proowner, keeper, 'member') then
            raise exception 'trigger % on % would run with the rights of %', quote_ident(one.tgname), one.relation, keeper::regrole
                using errcode = '42501', detail = format('Its function %s belongs to %s.', one.routine, one.proowner::regrole),
                      hint = format('Through this name triggers run as the table''s owner. If they may: ALTER FUNCTION %s OWNER TO %s.', one.routine, keeper::regrole);
        end if;
    end loop;
    return are_there;
end
$$;
