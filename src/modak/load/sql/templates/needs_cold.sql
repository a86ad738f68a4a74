-- How many rows have to be looked for in the cold tier before they can be written.
select count(*) as n from {stage} s where {needs};
