-- A canonical tier key as a date; a key beyond what the type holds is an open end.
create or replace function modak.line_date(key bigint) returns date
language sql immutable parallel safe
return case
    when key < -2440588 then date '-infinity'
    when key > 2145042905 then date 'infinity'
    else date '1970-01-01' + key::integer
end;
