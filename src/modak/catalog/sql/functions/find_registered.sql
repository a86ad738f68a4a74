-- The registered table that a name stands for. Its heap and its view under their own names are told which name to use.
create or replace function modak.find_registered(p_name text, p_relation regclass) returns modak.tables
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    target modak.tables;
    advice text := 'Register it with "modak register", or write to it with plain SQL.';
begin
    if p_relation is null then
        raise exception 'relation "%" does not exist', p_name using errcode = '42P01';
    end if;
    select t.* into target
      from modak.tables t
      join pg_namespace n on n.nspname = t.schema_name
      join pg_class c on c.relnamespace = n.oid and c.relname in (t.table_name, t.heap_name, t.view_name)
     where c.oid = p_relation;
    if found and target.mode = 'mirrored' and target.cold_build = 0 then
        raise exception '"%" is mirrored: its heap is complete', p_name using errcode = '42809', hint = 'Write to it with plain SQL.';
    end if;
    if found and p_relation = to_regclass(format('%I.%I', target.schema_name, target.table_name)) then
        return target;
    end if;
    if found then
        advice := format('It is a part of %I.%I: use that name.', target.schema_name, target.table_name);
    end if;
    raise exception '"%" is not a registered table', p_name using errcode = '42809', hint = advice;
end
$$;
