-- Which files, known by their tier keys, hold rows that corrections speak of.
select f.place - 1 as place
  from unnest(%(lows)s::bigint[], %(highs)s::bigint[]) with ordinality as f(low, high, place)
 where exists (select from {delta} d
                where d.table_id = {table_id} and {place} between f.low and f.high and d.version <= {upto})
 order by f.place;
