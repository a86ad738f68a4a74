-- On the spill. After the insert, not before it: ON CONFLICT must find a spilled row first, and then inserts none.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
as $body$
begin
    if tg_op OPERATOR(pg_catalog.=) 'INSERT' or not pg_catalog.record_image_eq(row({old_keys}), row({new_keys})) then
        perform modak.{taken}(row({new_columns})::{heap});
    end if;
    return null;
end
$body$;
