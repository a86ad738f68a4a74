-- Corrections that are newer learn where the lake has the row now.
update {delta} d set old_tier_key = nullif(i.tier_key, d.tier_key), placed = true
  from (select distinct on (1) {pk} as pk, {canonical} as tier_key from {incoming} i order by 1, i.version desc) i
 where d.table_id = {table_id} and d.pk = i.pk;
