-- Row images name their columns: all of them change names at once, so that two columns may swap theirs.
update {relation} d
   set payload = (d.payload - {old}::text[])
              || (select coalesce(jsonb_object_agg(n.new_name, d.payload -> n.old_name), '{{}}'::jsonb)
                    from unnest({old}::text[], {new}::text[]) n(old_name, new_name) where d.payload ? n.old_name)
 where d.table_id = {table_id} and d.payload ?| {old}::text[];
