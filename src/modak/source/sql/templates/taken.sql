-- A cold row is about to take a key: 23505 where another row has it, in the delta, in the lake, or among the hot ones. The key is claimed by
-- a tombstone, which the row's own correction then replaces: of two transactions that want one key the second waits here. wherever: a hot
-- row's key is looked up too, and not claimed, since the delta says nothing of hot rows.
create or replace function modak.{function}(made {heap}, wherever boolean) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, MDY'
set intervalstyle = 'postgres'
set extra_float_digits = 1
set bytea_output = 'hex'
as $body$
declare
    held record;
    taken boolean;
    is_unknown boolean;
    tier text := 'cold';
    made_pk text := {pk_made};
    made_key bigint;
begin
    -- What is no key at all the heap itself refuses.
    if made.{tier_key} is null or not {is_finite} then
        return;
    end if;
    made_key := {canonical_made};
    select * into held from modak.hold_line({table_id});
    if made_key < held.line then
        insert into {delta} (table_id, pk, op, tier_key, payload, placed) values ({table_id}, made_pk, 1, made_key, {key_image_made}, true)
            on conflict (table_id, pk) do nothing;
        is_unknown := found;
    elsif wherever and {key_is_anywhere} then
        is_unknown := not exists (select from {delta} d where d.table_id = {table_id} and d.pk = made_pk);
    else
        return;
    end if;
    if is_unknown then
        select exists (select from {cold} c where {lake_has_key} and c._modak_pin <> held.snapshot) into taken;
    else
        select d.op = 0 into taken from {delta} d where d.table_id = {table_id} and d.pk = made_pk;
    end if;
    -- A key that does not say its place may be a hot row's. By its text as well: a row whose key only looks different now is no other one.
    if taken is not true and {key_is_anywhere} then
        select exists (select from {heap} h where {heap_has_key} and h.{tier_key} >= {line_value} and {pk_heap} = made_pk) into taken;
        tier := 'hot';
    end if;
    if taken then
        raise exception 'duplicate key value violates unique constraint on (%) of table "%"', {key_text}, {table_text}
            using errcode = '23505', detail = format('Key (%s)=(%s) already exists.', {key_text}, concat_ws(', ', {made_keys})),
                  hint = format('The row is %s. UPDATE it, or use modak_upsert.', tier), schema = {schema_text}, table = {name_text};
    end if;
end
$body$;
