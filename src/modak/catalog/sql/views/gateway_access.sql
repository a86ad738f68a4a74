-- By what the gateway knows that an order, or a query in somebody's name, came through the catalog's own views. Nobody is granted this one: the others
-- read it with the rights of the catalog's owner, and show it to nobody.
create or replace view modak.gateway_access as
select encode(sha256(convert_to(concat('modak gateway ', g.verifier), 'UTF8')), 'hex') as token from modak.gateway g;
comment on view modak.gateway_access is 'By what the gateway knows orders and queries of the catalog''s own views; for these alone.';
