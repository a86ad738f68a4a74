-- A canonical tier key as SQL text in the key's own type, which reads the same in every session and names nothing of this schema.
-- A key beyond what the type holds is an open end.
create or replace function modak.line_literal(key bigint, key_type text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO, MDY'
as $$
    select case
        when key_type not like 'timestamp%' and key_type <> 'date' then format('%L::pg_catalog.int8', key)
        when key < case key_type when 'date' then -2440588 else -210866803200000000 end then format('''-infinity''::%s', full_type)
        when key > case key_type when 'date' then 2145042905 else 9223372036854775806 end then format('''infinity''::%s', full_type)
        when key_type = 'date' then format('%L::pg_catalog.date', date '1970-01-01' + key::integer)
        else format('(%L::timestamp%s)', timestamp '1970-01-01' + (key / 86400000000) * interval '1 day'
                                                                + (key % 86400000000) * interval '1 microsecond',
                    case when key_type = 'timestamp with time zone' then ' at time zone ''UTC''' else '' end)
    end
      from (select case key_type when 'date' then 'pg_catalog.date' else key_type end) x(full_type)
$$;
