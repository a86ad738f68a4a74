-- How the rows of a batch lie to the seam. A key is wrong where it is NULL, endless, or below the retention line.
select count(*) as rows,
       count(*) filter (where {hot}) as hot,
       count(*) filter (where {cold}) as cold,
       count(*) filter (where {wrong}) as wrong
  from {stage} s;
