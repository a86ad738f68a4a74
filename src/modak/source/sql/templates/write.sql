-- UPDATE and DELETE through the view, and COPY into it. A row that stands in the heap is changed there: hot rows, rows of the spill and
-- of partitions that are tiered and not dropped yet; their own triggers tell the delta. A row that only the lake has is unseated by a
-- tombstone, and its new image comes in as any insert does, so every constraint and trigger of the heap has its say.
-- No SET here: the heap's own triggers must find the session as it is. So every name is written in full.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
as $body$
declare
    standing {heap};
begin
    if tg_op OPERATOR(pg_catalog.=) 'INSERT' then
        insert into {heap} ({stored_columns}) {overriding} values ({copied_values}) returning {columns} into new;
        return case when found then new end;
    end if;
    if tg_op OPERATOR(pg_catalog.=) 'UPDATE' then
        {check_generated}
        null;
    end if;
    select * into standing from {heap} h where {is_old} for update;
    if found then
        if not pg_catalog.record_image_eq(row({standing_columns}), row({old_columns})) then
            raise exception 'could not serialize access due to concurrent update of table "%"', {table_text}
                using errcode = '40001', hint = 'Run the transaction again.';
        end if;
        if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
            delete from {heap} h where {is_old};
            return case when found then old end;
        end if;
        update {heap} h set {assignments} where {is_old} returning {heap_columns} into new;
        return case when found then new end;
    end if;
    if not modak.{unseat}(row({old_columns})::{heap}) then
        return null;
    end if;
    if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
        return old;
    end if;
    insert into {heap} ({stored_columns}) {overriding} values ({new_values}) returning {columns} into new;
    return case when found then new end;
end
$body$;
