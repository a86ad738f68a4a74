-- A row that gives some columns only, and may be in a staged file, where nobody can look it up: the rest of it is not known yet.
select s._modak_line as line, l.label
  from {stage} s
  join modak.load_labels l on l.table_id = {table_id} and l.state = 'staged' and {may_hold}
 where {needs} and {is_partial}
 order by s._modak_line limit 1;
