-- A row that does not pass through its heap obeys what the heap asks of every row: NOT NULL and CHECK, in Postgres's own words.
create or replace function modak.check_rules(p_table_id bigint, made anyelement) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    heap record;
    one record;
    is_kept boolean;
begin
    select n.nspname, c.relname into heap from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = p_table_id::oid;
    for one in select a.attname from pg_attribute a
                where a.attrelid = p_table_id::oid and a.attnum > 0 and a.attnotnull and not a.attisdropped order by a.attnum loop
        execute format('select num_nulls(($1).%I) = 0', one.attname) into is_kept using made;
        if not is_kept then
            raise exception 'null value in column "%" of relation "%" violates not-null constraint', one.attname, heap.relname
                using errcode = '23502', schema = heap.nspname, table = heap.relname, column = one.attname;
        end if;
    end loop;
    -- A rule that is not enforced is one of newer servers, whose catalog says so.
    for one in select c.conname, pg_get_expr(c.conbin, c.conrelid) as rule from pg_constraint c
                where c.conrelid = p_table_id::oid and c.contype = 'c' and coalesce((to_jsonb(c) ->> 'conenforced')::boolean, true)
                order by c.conname loop
        execute format('select (%s) from unnest(array[$1]) %I', one.rule, heap.relname) into is_kept using made;
        if not is_kept then
            raise exception 'new row for relation "%" violates check constraint "%"', heap.relname, one.conname
                using errcode = '23514', schema = heap.nspname, table = heap.relname, constraint = one.conname;
        end if;
    end loop;
end
$$;
