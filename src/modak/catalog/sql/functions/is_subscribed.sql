-- Whether a subscription knows all three tables. What it does not know it reads from the peer's stream, and applies nothing of it.
create or replace function modak.is_subscribed(subscription text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from pg_subscription s join pg_database d on d.oid = s.subdbid
                    where s.subname = subscription and d.datname = current_database()
                      and (select count(*) from pg_subscription_rel r where r.srsubid = s.oid) = 3)
$$;
