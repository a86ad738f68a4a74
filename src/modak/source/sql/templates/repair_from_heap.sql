-- The heap's rows as the corrections of the lake's. Locked first: whoever is changing one is waited for, and the image is that of what he left.
select r.pk, modak.put_delta({table_id}, r.pk, 0::smallint, r.tier_key, null, r.image)
  from (select {pk} as pk, {tier_key} as tier_key, {image} as image from only {partition} r
         where {pk} = any ({wanted}::text[]) for no key update of r) r;
