-- The row with this key goes, from whichever tier it is in. Returns that tier; NULL where there is no such row.
create or replace function public.modak_delete(table_name text, key jsonb) returns text
language sql volatile
begin atomic
    select modak.carry_out(c.key_name, c.steps, key)
      from modak.compose_write('delete', table_name, pg_catalog.to_regclass(table_name), key) c;
end;
