-- A cold row, corrected since some transaction began, that has the key of a row in this partition. By the columns, for which there may be an
-- index, and by the text that the delta goes by.
select d.pk, {tier_key} as hot, d.tier_key as cold
  from {delta} d
  join only {partition} r on {same_key} and {pk} = d.pk
 where d.table_id = {table_id} and d.op = 0 and age(d.xmin) <= age({since}::xid)
 limit 1;
