-- How the tier keys of new images lie: both ends, and marks between them that cut the rows into equal parts.
select min(d.tier_key) as low, max(d.tier_key) as high,
       percentile_disc(%(marks)s::float8[]) within group (order by d.tier_key) as marks
  from {delta} d where d.table_id = {table_id} and d.op = 0 and d.version <= {upto};
