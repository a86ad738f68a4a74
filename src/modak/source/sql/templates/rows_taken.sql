-- Which of some rows, given by the columns that partitions go by, the partitions with these conditions take.
select r._modak_key as key
  from (select u.key as _modak_key, {casts} from unnest({keys}::text[], {images}::jsonb[]) u (key, image)) r
 where {conditions};
