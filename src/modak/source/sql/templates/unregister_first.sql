-- Never called. It stands on the type of the view's rows, so that DROP VIEW fails and says by its name what comes first.
create function modak.{function}({view}) returns void language sql set search_path = pg_catalog, pg_temp as '';
