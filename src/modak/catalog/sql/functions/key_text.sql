-- A canonical tier key as a person reads it, in UTC. Keys at the ends of the range mean "no bound".
create or replace function modak.key_text(key bigint, key_type text) returns text
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO'
as $$
    select case
        when key is null then null
        when key = -9223372036854775808 then '-infinity'
        when key = 9223372036854775807 then 'infinity'
        when key_type = 'date' and key between -2440588 and 2145042905 then (date '1970-01-01' + key::integer)::text
        when key_type like 'timestamp%' and key >= -210866803200000000 then
            (timestamp '1970-01-01' + (key / 86400000000) * interval '1 day'
                                    + (key % 86400000000) * interval '1 microsecond')::text
        else key::text
    end
$$;
