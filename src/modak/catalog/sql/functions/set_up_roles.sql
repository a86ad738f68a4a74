-- The roles of Modak and what each may do, and nobody else. Run by every migration, so it changes nothing that is right already.
-- Roles are the whole server's: those that another database made are taken as they are, and those that this role may not make are returned.
--   modak_reader  looks at the state of tables: no rows, no corrections
--   modak_writer  names what applications call; like modak.grant_app_access, by membership
--   modak_worker  runs jobs, together with membership in the roles that own the tables
create or replace function modak.set_up_roles() returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set client_min_messages = error
as $$
declare
    -- What views, rules and parsed functions call as whoever uses them. Each is harmless alone, or asks for the caller's own rights.
    everybody constant text[] := array['allow_own_change', 'ask_gateway', 'carry_out', 'check_rules', 'cold_bound', 'date_text',
                                       'explain_insert', 'explain_tiers', 'guarded_path', 'guards_triggers', 'has_locked', 'heap_bound',
                                       'heap_of', 'insert_seam', 'is_own_change', 'is_running', 'key_text', 'line_moved', 'missed_setting',
                                       'next_identity', 'not_given', 'note_missed', 'note_unchanged', 'pk_parts', 'query',
                                       'rules_are_plain', 'take_missed', 'timestamp_text', 'was_deleted'];
    -- Rows, images of rows, what a gateway is checked by, and what it is about to do.
    confidential constant text[] := array['delta', 'captured', 'folded', 'gateway', 'gateway_access', 'gateway_query', 'gateway_order', 'gateway_orders',
                                          'lake_commits'];
    missing text[] := '{}';
    one text;
begin
    perform modak.check_makers();
    foreach one in array array['modak_reader', 'modak_writer', 'modak_worker'] loop
        if to_regrole(one) is null then
            begin
                execute format('create role %I nologin', one);
            exception when insufficient_privilege or duplicate_object or unique_violation then
                null;
            end;
        end if;
        if to_regrole(one) is null then
            missing := missing || one;
        end if;
    end loop;
    -- A trigger function that anybody may put on a table of his own would do there what it does on ours. That for new partitions looks where it is.
    for one in select p.oid::regprocedure::text from pg_proc p
                where p.pronamespace = 'modak'::regnamespace and p.proname <> all (everybody) and p.proname !~ '^newcomer_[0-9]+$'
                  and pg_has_role(p.proowner, 'usage')
                  and not exists (select from pg_depend d where d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.deptype = 'e') loop
        execute format('revoke execute on function %s from public', one);
        if to_regrole('modak_worker') is not null then
            execute format('grant execute on function %s to modak_worker', one);
        end if;
    end loop;
    for one in select distinct c.relowner::regrole::text from modak.tables t join pg_class c on c.oid = t.table_id::oid loop
        execute format('grant execute on function modak.hold_line(bigint) to %s', one);
    end loop;
    if to_regrole('modak_writer') is not null then
        grant usage on schema modak to modak_writer;
    end if;
    if to_regrole('modak_reader') is not null then
        grant usage on schema modak to modak_reader;
        for one in select c.oid::regclass::text from pg_class c
                    where c.relnamespace = 'modak'::regnamespace and c.relkind in ('r', 'v')
                      and c.relname <> all (confidential) and c.relname !~ '^(delta|cold|incoming|untier)_' loop
            execute format('grant select on %s to modak_reader', one);
        end loop;
    end if;
    if to_regrole('modak_worker') is not null then
        grant usage, create on schema modak to modak_worker;
        grant usage on schema modak_lake to modak_worker;
        grant usage on foreign server modak_gateway to modak_worker;
        grant usage on all sequences in schema modak to modak_worker;
        for one in select c.oid::regclass::text from pg_class c
                    where c.relnamespace in ('modak'::regnamespace, 'modak_lake'::regnamespace) and c.relkind in ('r', 'p', 'v')
                      and c.relname <> all (array['gateway', 'gateway_access', 'schema_migrations']) and pg_has_role(c.relowner, 'usage') loop
            execute format('grant select, insert, update, delete on %s to modak_worker', one);
        end loop;
        revoke insert, update, delete on modak.schema_meta from modak_worker;
        -- By modak.gateway_orders, which says that it is the catalog's.
        revoke all on modak.gateway_order from modak_worker;
        -- What writes corrections was once whoever's who registered the table.
        if pg_has_role('modak_worker', 'usage')
           and pg_has_role('modak_worker', case when current_setting('server_version_num')::int >= 160000 then 'set' else 'member' end) then
            for one in select p.oid::regprocedure::text from pg_proc p
                        where p.pronamespace = 'modak'::regnamespace and p.proname ~ '^(spill_guard|spill_mirror|capture|newcomer)_[0-9]+$'
                          and p.proowner <> 'modak_worker'::regrole and pg_has_role(p.proowner, 'usage') loop
                execute format('alter function %s owner to modak_worker', one);
            end loop;
        end if;
    end if;
    return missing;
end
$$;
