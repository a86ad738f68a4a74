-- A fold notes a million corrections at a time, and a foreign key looks each of them up by itself: that was a third of a large fold's time.
-- What a table leaves here goes with its registration all the same.
alter table modak.folded drop constraint folded_table_id_fkey;
