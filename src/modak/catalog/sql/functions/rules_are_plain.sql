-- Whether modak.check_rules says all that a heap has to say about a new image of a row that keeps its key: no value is computed there, and nothing is
-- looked up in other rows or tables.
create or replace function modak.rules_are_plain(p_table_id bigint, p_key text[]) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select not exists (select from pg_constraint c where c.conrelid = p_table_id::oid and c.contype in ('f', 'x'))
       and not exists (select from pg_attribute a where a.attrelid = p_table_id::oid and a.attgenerated <> '' and not a.attisdropped)
       and not exists (select from pg_index i cross join lateral unnest(i.indkey::smallint[]) k(number)
                         left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number and k.number > 0
                        where i.indrelid = p_table_id::oid and i.indisunique and (a.attname is null or a.attname::text <> all (p_key)))
$$;
