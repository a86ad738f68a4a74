-- The oldest corrections that a fold can take, at most so many.
select max(chosen.version) as upto, count(*) as rows, count(*) filter (where chosen.op = 0) as upserts,
       count(*) filter (where not chosen.placed) as unplaced
  from (select d.version, d.op, {placed} as placed from {delta} d
         where d.table_id = {table_id} and d.version <= {upto} and {fits}
         order by d.version limit {rows_max}) chosen;
