-- A row by its key, wherever it stands: changed, moved, or added. Returns the tier it is in afterwards. In public, so that it is found
-- without a schema name, and of parsed SQL, so that its callers need no right on the schema modak; their rights on the table decide.
create or replace function public.modak_upsert(table_name text, row_image jsonb) returns text
language sql volatile
begin atomic
    with c as (
        insert into modak.write_orders (kind, name, relation, given)
        values ('upsert', table_name, pg_catalog.to_regclass(table_name), row_image) returning key_name, steps
    )
    select modak.carry_out(c.key_name, c.steps, row_image) from c;
end;
