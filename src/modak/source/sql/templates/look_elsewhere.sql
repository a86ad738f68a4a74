-- Not where the statement saw it. A row that was moved is not gone, and what the statement wants must be weighed anew.
    select h.xmin into maker from {heap} h where {heap_has_key} limit 1;
    if not found then
        select d.xmin into maker from {delta} d where d.table_id = {table_id} and d.pk = seen_pk and d.op = 0;
    end if;
    if found then
        perform modak.allow_own_change({table_id}, {table_text}, maker);
    elsif moved and not exists (select from {delta} d where d.table_id = {table_id} and d.pk = seen_pk)
          and exists (select from {cold} c where {lake_has_key} and c._modak_pin <> held.snapshot) then
        perform modak.allow_own_change({table_id}, {table_text}, null);
    end if;
