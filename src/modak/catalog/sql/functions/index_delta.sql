-- Indexes for look-ups among a table's corrections, as the view asks for them: by the tier key, so that whoever looks for a hot row does
-- not read every correction, and by a column of the key. Made anew where the columns' names or types changed. Tombstones are left out:
-- they hide rows and are none, and the key they stand at need not be one of the column's type.
-- Runs as the catalog's owner, who owns the partition. The expressions are made here, of names and types only: a caller chooses no code.
create or replace function modak.index_delta(p_table_id bigint, p_tier_key name, p_key name) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    keeper oid := (select c.relowner from pg_class c where c.oid = p_table_id::oid and c.relkind in ('r', 'p'));
    part text := 'delta_' || p_table_id;
    since_1970 constant text :=
        'timestamp ''1970-01-01'' + (tier_key / 86400000000) * interval ''1 day'' + (tier_key % 86400000000) * interval ''1 microsecond''';
    place text;
    expressions text[];
    expression text;
    index_name text;
    wanted text[] := '{}';
begin
    if keeper is null or not pg_has_role(session_user, keeper, 'usage') then
        raise exception 'only the owner of a table indexes its delta' using errcode = '42501';
    end if;
    -- Word for word what modak.source.view writes.
    select case (with recursive base(oid) as (
                     select a.atttypid union all select d.typbasetype from base b join pg_type d on d.oid = b.oid and d.typtype = 'd')
                 select b.oid from base b join pg_type d on d.oid = b.oid and d.typtype <> 'd')
               when 'timestamptz'::regtype then '((' || since_1970 || ') at time zone ''UTC'')'
               when 'timestamp'::regtype then '(' || since_1970 || ')'
               when 'date'::regtype then '(date ''1970-01-01'' + tier_key::integer)'
               else '(tier_key)'
           end || '::' || format_type(a.atttypid, a.atttypmod)
      into place
      from pg_attribute a where a.attrelid = p_table_id::oid and a.attname = p_tier_key and not a.attisdropped;
    -- Types whose text is read the same way by every session.
    expressions := array[place] || array(
        select format('(payload ->> %L)::%s', a.attname, format_type(a.atttypid, a.atttypmod))
               || coalesce((select format(' collate %I.%I', n.nspname, k.collname)
                              from pg_collation k join pg_namespace n on n.oid = k.collnamespace
                             where k.oid = a.attcollation and a.attcollation <> t.typcollation), '')
          from pg_attribute a join pg_type t on t.oid = a.atttypid
         where a.attrelid = p_table_id::oid and a.attname = p_key and not a.attisdropped
           and a.atttypid in ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'uuid'::regtype, 'text'::regtype, 'varchar'::regtype,
                              'numeric'::regtype));
    foreach expression in array expressions loop
        index_name := part || '_by_' || substr(md5(expression), 1, 8);
        wanted := wanted || index_name;
        if to_regclass(format('modak.%I', index_name)) is null then
            execute format('create index %I on modak.%I ((%s)) where op = 0', index_name, part, expression);
        end if;
    end loop;
    for index_name in
        select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
         where i.indrelid = format('modak.%I', part)::regclass and starts_with(c.relname, part || '_by_') and c.relname <> all (wanted)
    loop
        execute format('drop index modak.%I', index_name);
    end loop;
end
$$;
