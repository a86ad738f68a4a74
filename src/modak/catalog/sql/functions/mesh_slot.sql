-- The name of the slot on one node from which another reads, and of the subscription that does: readable, and different for different nodes.
create or replace function modak.mesh_slot(publisher text, subscriber text) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select concat('modak_mesh_', left(regexp_replace(lower(publisher), '[^a-z0-9_]', '_', 'g'), 16), '_',
                  left(regexp_replace(lower(subscriber), '[^a-z0-9_]', '_', 'g'), 16), '_',
                  left(md5(concat(publisher, chr(31), subscriber)), 8))
$$;
