"""Decoupled tables: their transactions in the lake, and the orders of the SQL functions that make and drop them."""
