-- Whether a late row that stays in the heap would stand beside a newer one of the lake.
select exists (select from {spill} s where {meets}) as found;
