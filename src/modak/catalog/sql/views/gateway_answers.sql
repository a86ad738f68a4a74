-- What the gateway says to queries of whoever reads this. The role cannot be made up, not even by code that runs inside another's
-- statement: in a view current_user is the role whose rights count at that moment, and no condition reaches the column that names it.
create or replace view modak.gateway_answers as
select g.kind, g.sql, g.path, g.vals
  from modak.gateway_query g
 -- As a sub-select it is a value when the gateway is asked; as a condition it would be tested here, and never sent.
 where g.caller = (select encode(convert_to(current_user::text, 'UTF8'), 'hex'))
   and g.token = (select a.token from modak.gateway_access a);
comment on view modak.gateway_answers is 'Answers of the gateway to the current role, for modak.query and modak_explain; everybody reads it, each his own.';
grant select on modak.gateway_answers to public;
