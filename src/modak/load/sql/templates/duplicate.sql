-- The first row whose key an earlier one has.
select k.line, k.first_line, k.key
  from (select s._modak_line as line, min(s._modak_line) over (partition by {keys}) as first_line, concat_ws(', ', {keys}) as key
          from {stage} s) k
 where k.line > k.first_line
 order by k.line limit 1;
