"""Whole SELECTs over registered tables, answered by DuckDB at one seam: hot rows and corrections read under an exported snapshot."""
