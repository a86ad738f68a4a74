"""Pinned reads from outside Postgres: what DuckDB's and Spark's readers share of the seam protocol."""
