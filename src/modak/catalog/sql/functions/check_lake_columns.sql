-- Refuse the columns of a decoupled table that cannot be, before anything is made of them.
create or replace function modak.check_lake_columns(p_columns jsonb) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    example constant text := 'Give them as [{"name": "id", "type": "bigint", "not_null": true}, {"name": "at", "type": "timestamptz"}].';
    known constant text[] := array['name', 'type', 'not_null', 'nullable', 'default', 'comment'];
    given jsonb;
    label text;
    other text;
    seen text[] := '{}';
begin
    if p_columns is null or jsonb_typeof(p_columns) <> 'array' or jsonb_array_length(p_columns) = 0 then
        raise exception 'a decoupled table needs columns' using errcode = 'invalid_parameter_value', hint = example;
    end if;
    for given in select jsonb_array_elements(p_columns) loop
        if jsonb_typeof(given) <> 'object' or coalesce(jsonb_typeof(given->'name'), '') <> 'string' then
            raise exception 'a column has no name: %', given using errcode = 'invalid_parameter_value', hint = example;
        end if;
        label := given->>'name';
        if label = '' or octet_length(label) > 63 or label ~ '[[:cntrl:]]'
           or label ~* '^(_file|_pos|_deleted|_spec_id|_partition|_row_id|_last_updated_sequence_number|_pin|_modak_.*)$' then
            raise exception 'a column cannot be called %', quote_literal(label)
                using errcode = 'invalid_name', hint = 'Names have 1 to 63 bytes, none of them control characters; a few like _pos are the lake''s own.';
        end if;
        if lower(label) = any (seen) then
            raise exception 'column "%" is there twice', label
                using errcode = 'duplicate_column', hint = 'Engines of the lake do not tell capitals from small letters.';
        end if;
        seen := seen || lower(label);
        select key into other from jsonb_object_keys(given) key where key <> all (known) limit 1;
        if other is not null then
            raise exception 'column "%" has an unknown part "%"', label, other
                using errcode = 'invalid_parameter_value', hint = concat('Known: ', array_to_string(known, ', '), '.');
        end if;
        if jsonb_typeof(given->'not_null') not in ('boolean', 'null') or jsonb_typeof(given->'nullable') not in ('boolean', 'null')
           or jsonb_typeof(given->'comment') not in ('string', 'null') or jsonb_typeof(given->'type') not in ('string', 'null')
           or jsonb_typeof(given->'default') in ('object', 'array') then
            raise exception 'a part of column "%" has the wrong kind of value: %', label, given
                using errcode = 'invalid_parameter_value', hint = 'not_null and nullable are true or false; type, comment and default are text.';
        end if;
        perform modak.check_lake_type(label, given->>'type');
        perform modak.check_lake_default(label, given->>'default');
    end loop;
end
$$;
