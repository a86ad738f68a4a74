-- The statements on the two-tier view that carry out modak_upsert or modak_delete: run in turn until one meets a row, and it says in which
-- tier. They run as the caller, so they name nothing of this schema, and casts to the user's own types are left to them: here these would
-- run as the catalog's owner. T is held, and moves when the caller's transaction has ended: so only
-- modak.compose_ordered calls it, which has asked for the caller's rights.
create or replace function modak.compose_write(
    p_kind text, p_name text, p_relation regclass, p_given jsonb, out key_name text, out steps text[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    target modak.tables := modak.find_registered(p_name, p_relation);
    view text := format('%I.%I', target.schema_name, target.view_name);
    given_key text := p_given ->> target.tier_key_col;
    held record;
    expired boolean;
    is_hot text;
    is_key text;
    answer text;
    assigned text;
    inserted text;
    typed text;
    change text;
begin
    perform modak.check_given(p_kind, target, p_given);
    select * into held from modak.hold_line(target.table_id);
    if given_key is not null and held.floor_line is not null then
        execute format('select %L::%s < %s', given_key, target.tier_key_type, modak.line_literal(held.floor_line, target.tier_key_type))
           into expired;
        if expired then
            raise exception 'row of table "%.%" with % = % lies below the retention line', target.schema_name, target.table_name,
                target.tier_key_col, given_key using errcode = '22008', hint = 'Rows this old have expired and are not taken back.';
        end if;
    end if;
    is_hot := format('v.%I OPERATOR(pg_catalog.>=) ', target.tier_key_col) || modak.line_literal(held.line, target.tier_key_type);
    answer := ' returning case when ' || is_hot || ' then ''hot'' else ''cold'' end';
    -- Types without their length: a cast to varchar(3) would cut a longer value down to another row's key.
    select string_agg(format('v.%I OPERATOR(pg_catalog.=) %L::%s', a.attname, p_given ->> a.attname, format_type(a.atttypid, -1)), ' and ')
      into is_key
      from pg_attribute a
     where a.attrelid = target.table_id::oid
       and (a.attname = any (target.primary_key_cols) or (p_kind = 'delete' and a.attname = target.tier_key_col and given_key is not null));
    if p_kind = 'upsert' then
        select string_agg(format('%I = r.%I', a.attname, a.attname), ', '),
               format('(%s) select %s', string_agg(quote_ident(a.attname), ', '), string_agg(format('r.%I', a.attname), ', ')),
               string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', ')
          into assigned, inserted, typed
          from pg_attribute a
         where a.attrelid = target.table_id::oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and p_given ? a.attname;
        typed := ' from pg_catalog.jsonb_to_record($1) r(' || typed || ')';
        change := 'update ' || view || ' v set ' || assigned || typed || ' where ' || is_key;
    else
        change := 'delete from ' || view || ' v where ' || is_key;
    end if;
    steps := array[change || answer];
    -- Where the key does not say the tier: hot rows first, they ask no gateway. The second look is at both tiers, because the row may have
    -- moved between the two.
    if not target.tier_key_col = any (target.primary_key_cols) and (p_kind = 'upsert' or given_key is null) then
        steps := array[change || ' and ' || is_hot || answer, change || answer];
    end if;
    if p_kind = 'upsert' then
        steps := steps || ('insert into ' || view || ' as v ' || inserted || typed || answer);
    end if;
    key_name := format('modak key of %s: %s', view, modak.key_hash(target, p_given));
    -- Where the key does not hold the tier key, no unique index keeps two rows of one key apart: whoever upserts it second waits here, before
    -- he looks. Not an advisory lock, of which one transaction can hold so many only.
    if p_kind = 'upsert' and not target.tier_key_col = any (target.primary_key_cols) then
        insert into modak.key_claims (key_hash) values (hashtextextended(key_name, 0));
        delete from modak.key_claims where key_hash = hashtextextended(key_name, 0);
    end if;
end
$$;
