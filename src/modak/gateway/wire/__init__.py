"""The Postgres wire protocol as bytes in, values out: no sockets, no clock, no waiting."""
