-- A hot row came after the file with the same key: it is the newer one, so the lake's must not be seen.
insert into {delta} (table_id, pk, op, tier_key, payload, placed)
select distinct on (2) {table_id}, {pk}, 1, {canonical}, {image}, true
  from {incoming} i
 where exists (select from {heap} h where {heap_has_key} and {is_hot})
 order by 2, i.version desc
    on conflict (table_id, pk) do nothing;
