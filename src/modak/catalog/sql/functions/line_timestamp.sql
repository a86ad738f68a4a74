-- A canonical tier key as a timestamp in UTC; a key beyond what the type holds is an open end.
create or replace function modak.line_timestamp(key bigint) returns timestamp
language sql immutable parallel safe
return case
    when key < -210866803200000000 then timestamp '-infinity'
    when key = 9223372036854775807 then timestamp 'infinity'
    else timestamp '1970-01-01' + (key / 86400000000) * interval '1 day' + (key % 86400000000) * interval '1 microsecond'
end;
