-- The first row past the heap that one of its constraints refuses.
select s._modak_line as line, case {violations} end as name
  from {stage} s where s._modak_set < 0 and ({violated})
 order by s._modak_line limit 1;
