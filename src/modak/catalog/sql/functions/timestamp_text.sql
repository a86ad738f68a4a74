-- A timestamp as Postgres prints it under ISO, whatever the session's DateStyle: the text that keys in the delta are made of.
-- The zone is '' or '+00'; the era stands behind it.
create or replace function modak.timestamp_text(value timestamp, zone text) returns text
language sql stable parallel safe
return case when not isfinite(value) then case when value > timestamp 'epoch' then 'infinity' else '-infinity' end
            else rtrim(rtrim(to_char(value, 'YYYY-MM-DD HH24:MI:SS.US'), '0'), '.') || zone
                 || case when value < timestamp '0001-01-01' then ' BC' else '' end
       end;
