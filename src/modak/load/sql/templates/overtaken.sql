-- Somebody put a copy of a corrected row into the heap meanwhile: it would say something else than the delta.
select exists (select from {stage} s where s._modak_set = -2 and exists (select from {heap} h where {heap_has_key})) as found;
