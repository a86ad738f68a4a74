-- A date as Postgres prints it under ISO, whatever the session's DateStyle.
create or replace function modak.date_text(value date) returns text
language sql stable parallel safe
return case when not isfinite(value) then case when value > date 'epoch' then 'infinity' else '-infinity' end
            else to_char(value, 'YYYY-MM-DD') || case when value < date '0001-01-01' then ' BC' else '' end
       end;
