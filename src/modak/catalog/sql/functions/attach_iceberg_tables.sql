-- Every Iceberg table of a namespace that is not known here yet, as decoupled tables of one schema: a new node sees everything at once.
-- What cannot be attached is left out, with the reason. Tables that hold cold rows of registered ones are nobody's to attach.
--   select * from modak.attach_iceberg_tables('public')
create or replace function modak.attach_iceberg_tables(schema_name text, namespace text default null, profile text default null)
returns table (lake_table text, attached regclass, problem text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    target text := modak.lake_profile(profile);
    listed jsonb := modak.order_gateway('list', jsonb_build_object('namespace', coalesce(namespace, schema_name), 'profile', target));
    label text;
begin
    for lake_table, label, problem in
        select l.one->>'ref', l.one->>'name', l.one->>'problem' from jsonb_array_elements(listed->'tables') l(one) order by 1 loop
        attached := null;
        perform modak.forget_dropped_lake_table(schema_name, label, lake_table, target);
        continue when exists (select from modak.decoupled d where d.lake_table_ref = lake_table and d.storage_profile = target)
                   or exists (select from modak.tables t where t.lake_table_ref = lake_table and t.storage_profile = target);
        if problem is null and to_regclass(format('%I.%I', schema_name, label)) is not null then
            problem := format('relation %I.%I exists already', schema_name, label);
        end if;
        if problem is null then
            attached := modak.attach_iceberg_table(schema_name, label, lake_table, target);
        end if;
        return next;
    end loop;
end
$$;
