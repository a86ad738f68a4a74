-- Always true, and decided without the sub-select. It is there for the planner: with the row's values known it counts 40,000 rows here, a
-- tenth of them without, so that a plan for any values looks cheaper than planning anew for every row. That outweighs some forty partitions;
-- with more of them opening all at every row costs more than a plan for the one does, and Postgres goes back to that.
({is_old_in_part} or (select pg_catalog.count(*) OPERATOR(pg_catalog.>=) 0
    from (select from pg_catalog.generate_series(1, 40000) limit 40000 OPERATOR(pg_catalog.+) {function}.tg_nargs) s))
