-- What only the catalog's own views say to the gateway. Whoever owns a foreign table of its server can have it ask for anything there, and
-- must not give orders, nor ask in another's name.

alter foreign table modak.gateway_order add column token text options (column_name 'token');
alter foreign table modak.gateway_query add column token text options (column_name 'token');
