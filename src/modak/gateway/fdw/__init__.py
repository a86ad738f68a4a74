"""Postgres's own connections: what postgres_fdw sends, and nothing else."""
