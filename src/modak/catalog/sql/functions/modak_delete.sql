-- The row with this key goes, from whichever tier it is in. Returns that tier; NULL where there is no such row.
create or replace function public.modak_delete(table_name text, key jsonb) returns text
language sql volatile
begin atomic
    with c as (
        insert into modak.write_orders (kind, name, relation, given)
        values ('delete', table_name, pg_catalog.to_regclass(table_name), key) returning key_name, steps
    )
    select modak.carry_out(c.key_name, c.steps, key) from c;
end;
