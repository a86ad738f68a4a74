-- Refuse a partition spec that does not fit the columns of a foreign table. The gateway reads it once more, by the same rules.
create or replace function modak.check_lake_partitions(p_relation regclass, p_partition_by text[]) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    ways constant text := 'Entries are a column, or identity(c), year(c), month(c), day(c), hour(c), bucket(n, c), truncate(n, c).';
    entry text;
    parts text[];
    numbered text[];
    word text;
    label text;
    amount text;
    base text;
    seen text[] := '{}';
begin
    foreach entry in array coalesce(p_partition_by, '{}') loop
        parts := regexp_match(entry, '^\s*([a-zA-Z]+)\s*\(\s*(.*?)\s*\)\s*$');
        word := coalesce(lower(parts[1]), 'identity');
        label := coalesce(parts[2], trim(entry));
        if label is null or word <> all (array['identity', 'year', 'month', 'day', 'hour', 'bucket', 'truncate']) then
            raise exception 'there is no partition transform like %', coalesce(quote_literal(entry), 'NULL')
                using errcode = 'invalid_parameter_value', hint = ways;
        end if;
        if word in ('bucket', 'truncate') then
            numbered := coalesce(regexp_match(label, '^([0-9]{1,10})\s*,\s*(.+)$'), (regexp_match(label, '^(.+?)\s*,\s*([0-9]{1,10})$'))[2:2]
                                 || (regexp_match(label, '^(.+?)\s*,\s*([0-9]{1,10})$'))[1:1]);
            amount := numbered[1];
            label := numbered[2];
            if label is null or amount::bigint not between 1 and 2147483647 then
                raise exception 'partition transform % wants a number from 1 to 2147483647 and a column', quote_literal(entry)
                    using errcode = 'invalid_parameter_value', hint = ways;
            end if;
        end if;
        if label ~ '^".*"$' then
            label := replace(substr(label, 2, length(label) - 2), '""', '"');
        end if;
        select t.typname into base
          from pg_attribute a join pg_type t on t.oid = a.atttypid
         where a.attrelid = p_relation and a.attnum > 0 and not a.attisdropped and a.attname = label;
        if base is null then
            raise exception 'partition column "%" is none of the table''s', label using errcode = 'undefined_column', hint = ways;
        end if;
        if base in ('float4', 'float8', 'json', 'jsonb', 'interval', 'bytea')
           or (word in ('year', 'month', 'day') and base not in ('timestamp', 'timestamptz', 'date'))
           or (word = 'hour' and base not in ('timestamp', 'timestamptz'))
           or (word = 'bucket' and base = 'bool')
           or (word = 'truncate' and base not in ('int2', 'int4', 'int8', 'numeric', 'text', 'varchar', 'bpchar')) then
            raise exception 'partition transform % does not fit column "%"', quote_literal(entry), label
                using errcode = 'datatype_mismatch',
                      hint = 'Times take year, month, day, hour; numbers and text bucket and truncate; all but floats, bytea, JSON and intervals themselves.';
        end if;
        word := concat(case when word in ('year', 'month', 'day', 'hour') then 'time' else word end, ' ', label);
        if word = any (seen) then
            raise exception 'column "%" is partitioned twice in one way', label
                using errcode = 'invalid_parameter_value', hint = 'Keep the finer one.';
        end if;
        seen := seen || word;
    end loop;
end
$$;
