"""Modak in a Spark program: a registered table as a DataFrame, and a sink for streams into one."""

from modak.spark.pinned import configure, pinned_table, pinned_tables
from modak.spark.sink import load_sink

__all__ = ["configure", "load_sink", "pinned_table", "pinned_tables"]
