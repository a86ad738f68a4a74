"""Modak: old rows of Postgres tables move to Apache Iceberg while SQL keeps seeing one table."""

__version__ = "0.1.0"
