-- Legal steps of a partition's life; the same table as modak.core.partition.ALLOWED, and a test holds them together.
create or replace function modak.check_partition_state() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if tg_op = 'INSERT' then
        if new.state <> 'hot' then
            raise exception 'partition % must start as hot, not %', new.partition_name, new.state using errcode = '55000';
        end if;
        return new;
    end if;
    if new.state <> old.state and (old.state, new.state) not in (
        ('hot', 'sealing'),
        ('sealing', 'tiering'), ('sealing', 'hot'),
        ('tiering', 'tiered'), ('tiering', 'hot'),
        ('tiered', 'dropped'), ('tiered', 'hot')
    ) then
        raise exception 'partition % cannot go from % to %', old.partition_name, old.state, new.state using errcode = '55000';
    end if;
    if new.state <> old.state then
        new.state_changed_at := clock_timestamp();
    end if;
    return new;
end
$$;
drop trigger if exists check_partition_state on modak.partitions;
create trigger check_partition_state before insert or update on modak.partitions
    for each row execute function modak.check_partition_state();
