select s._modak_line as line, {tier_key}::text as value from {stage} s where {hot} order by s._modak_line limit 1;
