-- Refuse a column's type that a decoupled table cannot keep exactly. What passes is one type's name as Postgres's parser reads it, made of
-- letters that cannot end it, and may be written into a statement as it stands.
create or replace function modak.check_lake_type(p_column text, p_type text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- The same as in core/decoupled.py.
    accepted constant regtype[] := array['bool', 'int2', 'int4', 'int8', 'float4', 'float8', 'numeric', 'text', 'varchar', 'bpchar', 'bytea',
                                         'uuid', 'date', 'time', 'timestamp', 'timestamptz', 'interval', 'json', 'jsonb'];
    names constant text := 'Accepted: smallint, integer, bigint, real, double precision, boolean, numeric(p,s) up to 38 digits, text, '
                           'varchar(n), char(n), bytea, uuid, date, time, timestamp, timestamptz, interval, json, jsonb.';
    found regtype;
    kind text;
begin
    if coalesce(trim(p_type), '') = '' then
        raise exception 'column "%" has no type', p_column using errcode = 'invalid_parameter_value', hint = names;
    end if;
    if p_type !~ '^[[:alnum:]_ ."(),[\]-]+$' or p_type ~ '--' then
        raise exception 'column "%": % is no name of a type', p_column, quote_literal(p_type) using errcode = 'syntax_error', hint = names;
    end if;
    begin
        found := to_regtype(p_type);
    exception when syntax_error or invalid_name then
        raise exception 'column "%": % is no name of a type', p_column, quote_literal(p_type) using errcode = 'syntax_error', hint = names;
    end;
    if found = any (accepted) and not (found = 'numeric'::regtype and p_type !~ '\(') then
        return;
    end if;
    -- A type of the user's own, which the search path of this function does not lead to.
    select case when t.typcategory = 'A' then 'an array' when t.typtype = 'e' then 'an enum' when t.typtype = 'd' then 'a domain'
                when t.typtype = 'c' then 'a composite type' when t.typtype = 'r' then 'a range' when t.typtype = 'm' then 'a multirange' end
      into kind
      from pg_type t where t.oid = found or (found is null and t.typname = lower(trim(p_type))) order by t.oid limit 1;
    raise exception 'column "%": % % be kept exactly in an Iceberg table', p_column,
        case when found = 'numeric'::regtype then 'numeric without digits'
             else concat('type ', p_type, case when kind is not null then concat(', ', kind, ',') end) end,
        case when found is null and kind is null then 'is not known, and cannot' else 'cannot' end
        using errcode = case when found is null and kind is null then 'undefined_object' else 'feature_not_supported' end,
              hint = concat(case when found = 'numeric'::regtype then 'Declare its digits, as in numeric(20,4). '
                                 when found = 'oid'::regtype then 'Use bigint. '
                                 when p_type ~* '^\s*(small|big)?serial' then 'Use bigint with a default, as in nextval(''a_sequence''). '
                                 when kind in ('an array', 'a composite type') then 'Use jsonb. '
                                 when kind = 'a domain' then 'Use the type below it. '
                                 when found is not null or kind is not null then 'Use text. ' end, names);
end
$$;
