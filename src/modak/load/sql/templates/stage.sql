-- Made once per connection and emptied by every commit, so that small batches leave no trace in Postgres's catalogs.
create temporary table {stage} (_modak_line bigint not null, _modak_set integer not null, {columns}) on commit delete rows;
