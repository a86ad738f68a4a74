-- Legal phases of a journaled operation; the same table as modak.core.operation.ALLOWED.
create or replace function modak.check_operation_phase() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if new.phase <> old.phase and (old.phase, new.phase) not in (
        ('flushing', 'committed'), ('flushing', 'abandoned'),
        ('committed', 'advanced'), ('committed', 'abandoned')
    ) then
        raise exception 'operation % cannot go from % to %', old.op_id, old.phase, new.phase using errcode = '55000';
    end if;
    new.updated_at := clock_timestamp();
    return new;
end
$$;
drop trigger if exists check_operation_phase on modak.op_log;
create trigger check_operation_phase before update on modak.op_log
    for each row execute function modak.check_operation_phase();
