select exists (select from {stage} s group by {keys} having count(*) > 1) as found;
