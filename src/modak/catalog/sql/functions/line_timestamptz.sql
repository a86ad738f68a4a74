-- A canonical tier key as an instant; whatever the session's time zone, the same one.
create or replace function modak.line_timestamptz(key bigint) returns timestamptz
language sql immutable parallel safe
return modak.line_timestamp(key) at time zone 'UTC';
