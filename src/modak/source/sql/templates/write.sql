-- UPDATE and DELETE through the view, and COPY into it. A row that stands in the heap is changed there: hot rows, rows of the spill and
-- of partitions that are tiered and not dropped yet; their own triggers tell the delta. A row that only the lake has is unseated by a
-- tombstone, and its new image comes in as any insert does, so every constraint of the heap has its say; by way of the old one where there
-- are triggers for what the statement does.
-- No SET here: the heap's own triggers must find the session as it is. So every name is written in full, types included: whoever calls this
-- chooses the search path, and a type in his temporary schema would come before Postgres's own.
create or replace function modak.{function}() returns trigger
language plpgsql security definer
as $body$
-- A column of the table may be called as a variable here is; where both could be meant, it is the column.
#variable_conflict use_column
<<here>>
declare
    standing {heap};
    version pg_catalog.record;
    changed pg_catalog.record;
    entry pg_catalog.text;
    met pg_catalog.text;
    is_plain boolean;  -- the heap has no triggers, and no row was left as it was: what most statements are
    is_first boolean;  -- the statement has not left any row as it was so far
    same_key boolean := false;
    is_done boolean := false;
    in_heap boolean;
    is_back boolean := false;
    fires pg_catalog.int4;  -- what the heap's own triggers are for: 4 INSERT, 8 DELETE, 16 UPDATE
    path pg_catalog.text;
    answer pg_catalog.record;
begin
    entry := pg_catalog.split_part(pg_catalog.current_setting({setting}, true), ' ', 1);
    is_plain := entry OPERATOR(pg_catalog.~~) '%//';
    is_first := is_plain or entry OPERATOR(pg_catalog.~~) '%//%';
    if not is_plain and entry OPERATOR(pg_catalog.~~) '%?%' then
        path := pg_catalog.current_setting('search_path');
        perform pg_catalog.set_config('search_path', modak.guarded_path(pg_catalog.current_schemas(false)), true);
    end if;
    <<work>>
    begin
        if tg_op OPERATOR(pg_catalog.=) 'INSERT' then
            insert into {heap} ({stored_columns}) {overriding} values ({copied_values}) returning {columns} into new;
            answer := case when found then new end;
            exit work;
        end if;
        -- The common case in one query: the row stands in the heap and is what the statement saw.
        if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
            if is_first then
                delete from {heap} h where {is_old} and {meets} and {planned_once};
                if found then
                    answer := old;
                    exit work;
                end if;
            end if;
        else
            {check_generated}
            same_key := pg_catalog.record_image_eq(row({new_keys}), row({old_keys}));
            if same_key and is_first then
                update {heap} h set {rest_assigned} where {is_old} and {meets} and {planned_once} returning {heap_columns} into changed;
                is_done := found;
                -- Unless the statement may meet the row again and could not tell, that is all.
                if is_done and is_plain and not {left_as_it_was} then
                    -- Nobody has to be guarded, so there is no path to put back.
                    return changed;
                end if;
            elsif same_key then
                update {heap} h set {rest_assigned} where {is_old} and {meets} and {first_time_here} and {planned_once}
                    returning {heap_columns} into changed;
                is_done := found;
            end if;
        end if;
        if not is_done then
            met := pg_catalog.current_setting({met}, true);
            select h.tableoid, h.ctid, h.xmin, h.cmin, h.xmax into version from {heap} h where {is_old};
            select * into standing from {heap} h where {is_old} and {notes} for update;
            in_heap := found;
            if in_heap then
                -- The query above had a version of the row in its hands. Where that was one to be changed, or was another than now and we are the
                -- ones who replaced it, a trigger of the heap has kept the row as it was, or made of it what it wants.
                if (same_key or (is_first and tg_op OPERATOR(pg_catalog.=) 'DELETE')) and
                   (case when met OPERATOR(pg_catalog.=) pg_catalog.concat(version.tableoid, version.ctid)
                         then pg_catalog.record_image_eq(row({standing_columns}), row({old_columns})) and {first_time}
                         else modak.is_own_change(version.xmin) end) then
                    exit work;
                end if;
                if not modak.{same}(standing, row({old_columns})::{heap}) then
                    perform modak.allow_own_change({table_id}, {table_text}, version.xmin);
                    -- This statement changed the row, as a join that meets it twice does, or a trigger did that it set off. Where there are
                    -- triggers, what it changed itself is marked by a lock.
                    if entry OPERATOR(pg_catalog.!~~) '%!%' or modak.has_locked(version.xmax) then
                        exit work;
                    elsif tg_op OPERATOR(pg_catalog.=) 'UPDATE' then
                        raise exception 'row of table "%" was already modified by an operation triggered by the current command', {table_text}
                            using errcode = '27000', hint = pg_catalog.concat('A trigger of the heap changed it. Through this name they fire after '
                                'each row, not at the end of the statement: change these rows in statements of their own, or hot ones in ',
                                {heap_text}, '.');
                    end if;
                elsif not {first_time} then
                    -- Met before, and left as it was.
                    exit work;
                end if;
                if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
                    delete from {heap} h where {is_old};
                    answer := case when found then old end;
                    exit work;
                end if;
            else
                select pg_catalog.bit_or(t.tgtype::pg_catalog.int4) into fires from pg_catalog.pg_trigger t
                 where t.tgrelid OPERATOR(pg_catalog.=) {table_id}::pg_catalog.oid and not t.tgisinternal
                   and t.tgenabled OPERATOR(pg_catalog.<>) 'D' and t.tgname OPERATOR(pg_catalog.<>) 'modak_newcomer';
                fires := coalesce(fires, 0) OPERATOR(pg_catalog.&) case when tg_op OPERATOR(pg_catalog.=) 'UPDATE' then 20 else 8 end;
            end if;
            if in_heap then
                null;
            elsif fires OPERATOR(pg_catalog.=) 4 and pg_catalog.record_image_eq(row({new_place}), row({old_place}))
                  and modak.rules_are_plain({table_id}, {place_names}) then
                -- An UPDATE, and none of them is for that.
                if modak.{correct}(row({old_columns})::{heap}, row({new_columns})::{heap},
                                   case when not is_first then pg_catalog.split_part(entry, '/', 3)::pg_catalog.int8 end) then
                    answer := new;
                end if;
                exit work;
            elsif fires OPERATOR(pg_catalog.<>) 0 then
                -- The heap has triggers of its own, of rows or of statements. So that they fire as for any row, and none of an INSERT decides
                -- what becomes of an UPDATE, the row comes back as it was and is then changed there. The setting lets a trigger tell this from an
                -- insert.
                begin
                    if not modak.{unseat}(row({old_columns})::{heap}, false) then
                        exit work;
                    end if;
                    if tg_op OPERATOR(pg_catalog.=) 'UPDATE' and not same_key then
                        perform modak.{taken}(row({new_columns})::{heap}, true);
                    end if;
                    perform pg_catalog.set_config('modak.returning', {table_text}, true);
                    insert into {heap} ({stored_columns}) {overriding} values ({old_values}) returning {columns} into standing;
                    is_back := found;
                    perform pg_catalog.set_config('modak.returning', '', true);
                    if not is_back then
                        raise exception 'a trigger of table "%" does not let a cold row be changed', {table_text} using errcode = '55000',
                            hint = 'The row is inserted into the heap to be changed there, and a BEFORE INSERT trigger refuses it. '
                                   'Let it pass where current_setting(''modak.returning'', true) names the table.';
                    end if;
                    if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
                        delete from {heap} h where {is_standing};
                    elsif same_key and pg_catalog.record_image_eq(row({standing_keys}), row({old_keys})) then
                        update {heap} h set {rest_assigned} where {is_standing} returning {heap_columns} into changed;
                    else
                        update {heap} h set {assignments} where {is_standing} returning {heap_columns} into changed;
                    end if;
                    if not found then
                        raise exception using errcode = 'MDK00';
                    end if;
                    if tg_op OPERATOR(pg_catalog.=) 'DELETE' then
                        answer := old;
                        exit work;
                    end if;
                    is_done := true;
                exception
                    when sqlstate 'MDK00' then
                        -- A trigger refused it: the row stays as it was, where it was.
                        exit work;
                    when integrity_constraint_violation then
                        if is_back then
                            raise;
                        end if;
                        -- The old image breaks a rule that is younger than it. The new one alone has to obey.
                end;
                if not is_done and not modak.{unseat}(row({old_columns})::{heap}, tg_op OPERATOR(pg_catalog.=) 'DELETE') then
                    exit work;
                elsif tg_op OPERATOR(pg_catalog.=) 'DELETE' then
                    answer := old;
                    exit work;
                end if;
            elsif not modak.{unseat}(row({old_columns})::{heap}, tg_op OPERATOR(pg_catalog.=) 'DELETE') then
                exit work;
            elsif tg_op OPERATOR(pg_catalog.=) 'DELETE' then
                answer := old;
                exit work;
            end if;
        end if;
        if not is_done then
            -- Another row's key: an INSERT may replace a cold row, an UPDATE must not.
            if not same_key then
                perform modak.{taken}(row({new_columns})::{heap}, true);
            end if;
            if in_heap then
                update {heap} h set {assignments} where {is_old} returning {heap_columns} into changed;
            else
                insert into {heap} ({stored_columns}) {overriding} values ({new_values}) returning {columns} into changed;
            end if;
            if not found then
                exit work;
            end if;
        end if;
        -- For when the statement meets the row again.
        if entry OPERATOR(pg_catalog.~~) '%!%' then
            perform from {heap} h where {is_changed} for key share;
        end if;
        if is_first and {left_as_it_was} then
            perform modak.note_unchanged({table_id}, h.cmin) from {heap} h where {is_changed};
        end if;
        answer := changed;
    end;
    if path is not null then
        perform pg_catalog.set_config('search_path', path, true);
    end if;
    return answer;
end
$body$;
