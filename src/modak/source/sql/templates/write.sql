-- UPDATE and DELETE through the view, and COPY into it. A row that stands in the heap is changed there: hot rows, rows of the spill and
-- of partitions that are tiered and not dropped yet; their own triggers tell the delta. A row that only the lake has is unseated by a
-- tombstone, and its new image comes in as any insert does, so every constraint and trigger of the heap has its say.
-- No SET here: the heap's own triggers must find the session as it is. So every name is written in full.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
as $body$
-- A column of the table may be called as a variable here is; where both could be meant, it is the column.
#variable_conflict use_column
declare
    standing {heap};
    in_heap boolean;
    same_key boolean;
    changed record;
begin
    if tg_op OPERATOR(pg_catalog.=) 'INSERT' then
        insert into {heap} ({stored_columns}) {overriding} values ({copied_values}) returning {columns} into new;
        return case when found then new end;
    end if;
    if tg_op OPERATOR(pg_catalog.=) 'UPDATE' then
        {check_generated}
        same_key := pg_catalog.record_image_eq(row({new_keys}), row({old_keys}));
    end if;
    -- The common case in one query: the row stands in the heap and is what the statement saw.
    if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
        delete from {heap} h where {is_old} and {is_unchanged} and {planned_once};
        if found then
            return old;
        end if;
    elsif same_key then
        update {heap} h set {rest_assigned} where {is_old} and {is_unchanged} and {planned_once} returning {heap_columns} into changed;
        if found then
            return changed;
        end if;
    end if;
    select * into standing from {heap} h where {is_old} for update;
    in_heap := found;
    if in_heap then
        if not pg_catalog.record_image_eq(row({standing_columns}), row({old_columns})) then
            perform modak.allow_own_change({table_id}, {table_text}, (select h.xmin from {heap} h where {is_old}));
            return null;
        end if;
        if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
            delete from {heap} h where {is_old};
            return case when found then old end;
        end if;
    elsif not modak.{unseat}(row({old_columns})::{heap}) then
        return null;
    elsif tg_op OPERATOR(pg_catalog.=) 'DELETE' then
        return old;
    end if;
    -- Another row's key: an INSERT may replace a cold row, an UPDATE must not.
    if not same_key then
        perform modak.{taken}(row({new_columns})::{heap});
    end if;
    if in_heap then
        update {heap} h set {assignments} where {is_old} returning {heap_columns} into new;
    else
        insert into {heap} ({stored_columns}) {overriding} values ({new_values}) returning {columns} into new;
    end if;
    return case when found then new end;
end
$body$;
