-- Refuses where somebody but the catalog's owner has put a routine or a relation of his own into this schema. modak_worker may create
-- here what it makes for registered tables, and the names of these end with a table's number; anything else could be taken for a part of
-- the catalog, by those who call it with more rights.
create or replace function modak.check_makers() returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    keeper oid := (select c.relowner from pg_class c where c.oid = 'modak.tables'::regclass);
    made record;
begin
    select m.kind, m.name, m.maker into made
      from (select 'function' as kind, p.oid::regprocedure::text as name, p.proowner as maker
              from pg_proc p
             where p.pronamespace = 'modak'::regnamespace
               and p.proname !~ '^[a-z_]+_[0-9]+$'
               and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e')
            union all
            select 'relation', c.oid::regclass::text, c.relowner
              from pg_class c
             where c.relnamespace = 'modak'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
               and c.relname !~ '^[a-z_]+_[0-9]+(_|$)'
            union all
            select 'operator', o.oid::regoperator::text, o.oprowner from pg_operator o where o.oprnamespace = 'modak'::regnamespace) m
     -- Who may act as the owner anyhow gains nothing; superusers are among them.
     where not pg_has_role(m.maker, keeper, 'member')
     limit 1;
    if found then
        raise exception 'the % % in the catalog''s schema is not the catalog''s: it belongs to %', made.kind, made.name, made.maker::regrole
            using errcode = 'insufficient_privilege', hint = 'Look at it and drop it, ask its owner why it is there, and try again.';
    end if;
end
$$;
