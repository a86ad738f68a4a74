-- Corrections without their row in the heap, as the comparison found them: gone. Not where somebody has corrected them again since.
update modak.delta d
   set op = 1, version = nextval('modak.delta_version'),
       payload = (select jsonb_object_agg(k.name, d.payload -> k.name) from unnest({key_names}::text[]) k(name))
  from unnest({keys}::text[], {versions}::bigint[]) f(pk, version)
 where d.table_id = {table_id} and d.pk = f.pk and d.version = f.version;
