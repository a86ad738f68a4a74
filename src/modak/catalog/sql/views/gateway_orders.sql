-- Orders to the gateway, for the functions of decoupled tables.
create or replace view modak.gateway_orders as
select o.verb, o.request, o.answer
  from modak.gateway_order o
 -- A value by the time that the gateway is asked, as in modak.gateway_answers.
 where o.token = (select a.token from modak.gateway_access a);
comment on view modak.gateway_orders is 'Orders to the gateway about decoupled tables; for modak.create_iceberg_table and its kin.';
