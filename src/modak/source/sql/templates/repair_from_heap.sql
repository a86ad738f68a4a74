-- The heap's rows as the corrections of the lake's.
select r.pk, modak.put_delta({table_id}, r.pk, 0::smallint, r.tier_key, null, r.image)
  from (select {pk} as pk, {tier_key} as tier_key, {image} as image from only {partition} r) r
 where r.pk = any ({wanted}::text[]);
