-- Cold rows that no trigger told the delta of: nobody would see them. A sub-select and no join: then each key is looked up by the index.
select count(*) as n, min({tier_key}::text) as example
  from {stage} s
 where s._modak_set >= 0 and {cold}
   and (select d.op from {delta} d where d.table_id = {table_id} and d.pk = {pk}) is distinct from 0;
