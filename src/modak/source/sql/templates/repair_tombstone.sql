-- A row that only the lake has: gone.
select modak.put_delta({table_id}, {pk}, 1::smallint, {tier_key}, null, {image})
  from (select {casts} from (select {row}::jsonb as row) j) r;
