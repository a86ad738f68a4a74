-- Rows that only the lake has: gone. Not where the heap has one by now, or a correction speaks for it that is younger than the comparison.
insert into modak.delta (table_id, pk, op, tier_key, payload)
select {table_id}, {pk}, 1, {tier_key}, {image}
  from (select {casts} from unnest({rows}::jsonb[]) j(row)) r
 where not exists (select from ({copies}) h where {same_key})
    on conflict (table_id, pk) do nothing;
