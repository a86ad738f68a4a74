"""A client's session through the gateway: Postgres's own, relayed, with the lake answering some of its SELECTs."""
