-- Whether an index of the heap begins with the columns of the key, in whatever order: then a look costs a few pages in each partition.
exists (select from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am m on m.oid = c.relam
         where i.indrelid = {table_id}::oid and i.indisvalid and i.indpred is null and m.amname = 'btree'
           and array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(attnum, place)
                       join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                      where k.place <= {key_count}) @> {key_names}::text[])
