-- What decides where an inserted row goes: the tier key with its type, T and R as literals of it, and the condition under which no
-- partition takes a row. For whoever may write to the table; NULL for any other relation than a registered one.
create or replace function modak.insert_seam(
    p_relation regclass, out tier_key text, out key_type text, out line text, out floor_line text, out unplaced text, out one_tier boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking text := case when current_setting('role') = 'none' then session_user else current_setting('role') end;
    target modak.tables;
begin
    select t.* into target
      from modak.tables t
      join pg_namespace n on n.nspname = t.schema_name
      join pg_class c on c.relnamespace = n.oid and c.relname in (t.table_name, t.heap_name, t.view_name)
     where c.oid = p_relation and has_any_column_privilege(asking, c.oid, 'insert');
    if not found then
        return;
    end if;
    tier_key := target.tier_key_col;
    key_type := target.tier_key_type;
    one_tier := target.mode = 'mirrored' and target.cold_build = 0;
    select modak.line_literal(c.tier_key_hi, key_type),
           case when c.retention_line is not null then modak.line_literal(c.retention_line, key_type) end
      into line, floor_line
      from modak.cutline c where c.table_id = target.table_id;
    -- The spill's own condition. With several spills it speaks of other columns as well.
    select case when count(*) = 1 then min(pg_get_partition_constraintdef(c.oid)) end into unplaced
      from pg_partition_tree(target.table_id::oid::regclass) p
      join pg_class c on c.oid = p.relid
     where pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT';
end
$$;
