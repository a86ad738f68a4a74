-- The parts of an encoded composite key: split at chr(31) where it is not escaped, then take the escapes away.
create or replace function modak.pk_parts(pk text) returns text[]
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    parts text[] := '{}';
    part text := '';
    c text;
    escaped boolean := false;
begin
    if position(chr(92) in pk) = 0 then
        return string_to_array(pk, chr(31));
    end if;
    foreach c in array string_to_array(pk, null) loop
        if escaped then
            part := part || c;
            escaped := false;
        elsif c = chr(92) then
            escaped := true;
        elsif c = chr(31) then
            parts := parts || part;
            part := '';
        else
            part := part || c;
        end if;
    end loop;
    return parts || part;
end
$$;
