-- UPDATE and DELETE through the view, and COPY into it. A row that stands in the heap is changed there: hot rows, rows of the spill and
-- of partitions that are tiered and not dropped yet; their own triggers tell the delta. A row that only the lake has is unseated by a
-- tombstone, and its new image comes in as any insert does, so every constraint of the heap has its say; by way of the old one where there
-- are triggers.
-- No SET here: the heap's own triggers must find the session as it is. So every name is written in full, types included: whoever calls this
-- chooses the search path, and a type in his temporary schema would come before Postgres's own.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
as $body$
-- A column of the table may be called as a variable here is; where both could be meant, it is the column.
#variable_conflict use_column
declare
    standing {heap};
    in_heap boolean;
    same_key boolean;
    changed pg_catalog.record;
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
        delete from {heap} h where {is_old} and {meets} and {is_unchanged} and {planned_once};
        if found then
            return old;
        end if;
    elsif same_key then
        update {heap} h set {rest_assigned} where {is_old} and {meets} and {is_unchanged} and {planned_once}
            returning {heap_columns} into changed;
        if found then
            return changed;
        end if;
    end if;
    select * into standing from {heap} h where {is_old} and {meets} for update;
    in_heap := found;
    if in_heap then
        if not modak.{same}(standing, row({old_columns})::{heap}) then
            perform modak.allow_own_change({table_id}, {table_text}, (select h.xmin from {heap} h where {is_old}));
            return null;
        end if;
        if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
            delete from {heap} h where {is_old};
            return case when found then old end;
        end if;
    elsif tg_op OPERATOR(pg_catalog.=) 'UPDATE' and exists (select from pg_catalog.pg_trigger t
                   where t.tgrelid OPERATOR(pg_catalog.=) {table_id}::pg_catalog.oid and not t.tgisinternal
                     and t.tgenabled OPERATOR(pg_catalog.<>) 'D' and (t.tgtype OPERATOR(pg_catalog.&) 1::pg_catalog.int2)
                         OPERATOR(pg_catalog.<>) 0 and (t.tgtype OPERATOR(pg_catalog.&) 20::pg_catalog.int2) OPERATOR(pg_catalog.<>) 0) then
        -- The heap has row triggers of its own, for INSERT or UPDATE. So that an UPDATE fires those of an UPDATE, and none of an INSERT decides
        -- what becomes of it, the row comes back as it was and is then updated there. The setting lets a trigger tell this from an insert.
        begin
            if not modak.{unseat}(row({old_columns})::{heap}, false) then
                return null;
            end if;
            if not same_key then
                perform modak.{taken}(row({new_columns})::{heap}, true);
            end if;
            perform pg_catalog.set_config('modak.returning', {table_text}, true);
            insert into {heap} ({stored_columns}) {overriding} values ({old_values}) returning {columns} into standing;
            in_heap := found;
            perform pg_catalog.set_config('modak.returning', '', true);
            if not in_heap then
                raise exception 'a trigger of table "%" does not let a cold row be updated', {table_text} using errcode = '55000',
                    hint = 'The row is inserted into the heap to be updated there, and a BEFORE INSERT trigger refuses it. '
                           'Let it pass where current_setting(''modak.returning'', true) names the table.';
            end if;
            if same_key and pg_catalog.record_image_eq(row({standing_keys}), row({old_keys})) then
                update {heap} h set {rest_assigned} where {is_standing} returning {heap_columns} into new;
            else
                update {heap} h set {assignments} where {is_standing} returning {heap_columns} into new;
            end if;
            if not found then
                raise exception using errcode = 'MDK00';
            end if;
            return new;
        exception when sqlstate 'MDK00' then
            -- A trigger refused the update: the row stays as it was, where it was.
            return null;
        end;
    elsif not modak.{unseat}(row({old_columns})::{heap}, tg_op OPERATOR(pg_catalog.=) 'DELETE') then
        return null;
    elsif tg_op OPERATOR(pg_catalog.=) 'DELETE' then
        return old;
    end if;
    -- Another row's key: an INSERT may replace a cold row, an UPDATE must not.
    if not same_key then
        perform modak.{taken}(row({new_columns})::{heap}, true);
    end if;
    if in_heap then
        update {heap} h set {assignments} where {is_old} returning {heap_columns} into new;
    else
        insert into {heap} ({stored_columns}) {overriding} values ({new_values}) returning {columns} into new;
    end if;
    return case when found then new end;
end
$body$;
