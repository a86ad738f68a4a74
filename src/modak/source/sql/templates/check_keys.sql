-- On the spill and on tiered partitions. After the insert, not before it: ON CONFLICT must find a spilled row first, and then inserts none.
-- An INSERT is refused where the registration asks for that, and replaces the row otherwise.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
as $body$
declare
    older {heap};
    folding pg_catalog.text;
begin
    if tg_op OPERATOR(pg_catalog.=) 'UPDATE' and pg_catalog.record_image_eq(row({old_keys}), row({new_keys})) then
        return null;
    end if;
    if tg_name OPERATOR(pg_catalog.<>) 'modak_keys' then
        -- A tiered partition; nothing holds T here yet.
        perform modak.hold_line({table_id});
    end if;
    if tg_op OPERATOR(pg_catalog.=) 'UPDATE' or tg_argv[0] OPERATOR(pg_catalog.=) 'check' then
        perform modak.{taken}(row({new_columns})::{heap}, false);
    end if;
    for older in select o.* from modak.{older}(row({new_columns})::{heap}) o loop
        -- So that the triggers beside this one do not take it for a deletion by the user.
        folding := pg_catalog.current_setting('modak.folding', true);
        perform pg_catalog.set_config('modak.folding', '{table_id}', true);
        delete from {heap} h where {is_older};
        perform pg_catalog.set_config('modak.folding', coalesce(folding, ''), true);
    end loop;
    return null;
end
$body$;
