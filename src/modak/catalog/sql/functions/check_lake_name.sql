-- Refuse the name of a new decoupled table where it cannot be.
create or replace function modak.check_lake_name(p_schema text, p_table text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if pg_is_in_recovery() then
        raise exception 'this server is a standby: decoupled tables are made and dropped on the primary'
            using errcode = 'read_only_sql_transaction', hint = 'Connect to the primary. Nothing was changed.';
    end if;
    if coalesce(p_schema, '') = '' or coalesce(p_table, '') = '' or octet_length(p_schema) > 63 or octet_length(p_table) > 63 then
        raise exception 'a table cannot be called %', format('%I.%I', coalesce(p_schema, ''), coalesce(p_table, ''))
            using errcode = 'invalid_name', hint = 'Schema and table have 1 to 63 bytes each.';
    end if;
    if not exists (select from pg_namespace n where n.nspname = p_schema) then
        raise exception 'there is no schema "%"', p_schema
            using errcode = 'invalid_schema_name', hint = format('create schema %I; makes it.', p_schema);
    end if;
    if to_regclass(format('%I.%I', p_schema, p_table)) is not null then
        raise exception 'relation % exists already', format('%I.%I', p_schema, p_table)
            using errcode = 'duplicate_table', hint = 'Choose another name. Nothing was changed.';
    end if;
end
$$;
