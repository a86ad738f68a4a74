-- How many rows of a decoupled table go at a time. postgres_fdw counts rows and holds them at both ends, so rows that may be large go a few at a
-- time; fewer than that, if somebody said so.
create or replace function modak.fit_batches(p_relation regclass) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    -- What a value may take that has no declared length: not what it can, but what nobody is surprised by.
    large constant bigint := 1048576;
    width bigint;
    one record;
begin
    select 32 * count(*) + coalesce(sum(least(large, 4 * (a.atttypmod - 4)::bigint)) filter (where t.typname in ('varchar', 'bpchar') and a.atttypmod > 0), 0)
           + case when bool_or(t.typname in ('text', 'json', 'jsonb', 'bytea') or t.typname in ('varchar', 'bpchar') and a.atttypmod < 0) then large else 0 end
      into width
      from pg_attribute a join pg_type t on t.oid = a.atttypid where a.attrelid = p_relation and a.attnum > 0 and not a.attisdropped;
    for one in select o.option_name as label, greatest(1, least(o.option_value::bigint, w.room * large / width)) as value
                 from pg_foreign_table f, pg_options_to_table(f.ftoptions) o, (values ('batch_size', 256), ('fetch_size', 1024)) w(label, room)
                where f.ftrelid = p_relation and o.option_name = w.label loop
        execute format('alter foreign table %s options (set %s %L)', p_relation, one.label, one.value);
    end loop;
end
$$;
