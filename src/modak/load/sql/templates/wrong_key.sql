-- The first row whose key is wrong, and in what way.
select s._modak_line as line,
       case {nulls} else {tier_key_text} end as column_name,
       case when {is_null} then 'null' when {infinite} then 'infinite' else 'expired' end as reason,
       {tier_key}::text as value
  from {stage} s where ({wrong})
 order by s._modak_line limit 1;
