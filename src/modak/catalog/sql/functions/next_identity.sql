-- The next value of an identity column's sequence, for INSERT through a view. Postgres asks no privilege on the sequence when it
-- fills an identity column itself, so neither does this; only sequences of registered heaps are served.
create or replace function modak.next_identity(sequence_id oid) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from pg_depend d join modak.tables t on t.table_id = d.refobjid::bigint
                    where d.classid = 'pg_class'::regclass and d.objid = sequence_id
                      and d.refclassid = 'pg_class'::regclass and d.deptype = 'i') then
        raise exception 'not the sequence of an identity column of a registered table' using errcode = '42501';
    end if;
    return nextval(sequence_id::regclass);
end
$$;
