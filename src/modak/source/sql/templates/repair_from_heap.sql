-- The heap's row as the correction of the lake's.
select modak.put_delta({table_id}, {pk}, 0::smallint, {tier_key}, null, {image})
  from only {partition} r
 where {pk} = {wanted};
