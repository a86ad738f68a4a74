-- INSERT through the view is an insert into the heap, at the heap's speed. COPY knows no rules and takes the trigger.
create or replace rule modak_insert as on insert to {view} do instead
    insert into {heap} ({insert_columns}) values ({insert_values}) returning {heap_columns};
