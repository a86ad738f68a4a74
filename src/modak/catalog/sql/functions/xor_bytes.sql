-- Two strings of the same length, XORed byte by byte.
create or replace function modak.xor_bytes(bytes bytea, pad bytea) returns bytea
language plpgsql immutable strict
set search_path = pg_catalog, pg_temp
as $$
begin
    for place in 0 .. length(bytes) - 1 loop
        bytes := set_byte(bytes, place, get_byte(bytes, place) # get_byte(pad, place));
    end loop;
    return bytes;
end
$$;
