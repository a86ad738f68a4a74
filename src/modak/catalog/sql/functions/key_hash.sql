-- A number for a row's key as modak_upsert and modak_delete are given it, the same for every spelling of one key: 7 and "007", a UUID in capitals, a
-- time in another zone. Values of Postgres's own types are read for that, as the caller's settings say, and compared as the type does. Casts
-- to anybody else's types would run his code as the catalog's owner: such a value counts as it is written.
create or replace function modak.key_hash(target modak.tables, p_given jsonb) returns bigint
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    key text;
    answer bigint;
begin
    select string_agg(
               format('%L::%s', p_given ->> a.attname, case when base.is_known then format_type(base.oid, -1) else 'text' end)
               || case when base.is_known and a.attcollation <> 0 then ' collate ' || a.attcollation::regcollation::text else '' end,
               ', ' order by a.attnum)
      into key
      from pg_attribute a
     cross join lateral (
         with recursive chain(oid) as (
             select a.atttypid
             union all
             select t.typbasetype from chain c join pg_type t on t.oid = c.oid where t.typtype = 'd'
         )
         -- What names a relation or a role is looked up by the caller's search path, which is not the one of this function.
         select t.oid, t.typnamespace = 'pg_catalog'::regnamespace and t.typname !~ '^_?reg' as is_known
           from chain c join pg_type t on t.oid = c.oid where t.typtype <> 'd'
     ) base
     where a.attrelid = target.table_id::oid and a.attname = any (target.primary_key_cols);
    -- Every type that a registered key may have can be hashed.
    execute format('select hash_record_extended(row(%s), 0)', key) into answer;
    return answer;
end
$$;
