-- Run statements in turn until one meets a row, and say what it said. A row that somebody changed meanwhile is looked at again, since
-- what is wanted of it does not depend on what it was; not where the transaction's snapshot would show the same once more.
-- Those who met on a key take turns by its name, so that of many nobody fails for ever.
-- No SET here: the table's own triggers must find the session as it is.
create or replace function modak.carry_out(key_name text, steps text[], given jsonb) returns text
language plpgsql volatile
as $$
declare
    step text;
    answer text;
begin
    for attempt in 1 .. 20 loop
        begin
            foreach step in array steps loop
                execute step into answer using given;
                if answer is not null then
                    return answer;
                end if;
            end loop;
            return null;
        exception when serialization_failure or unique_violation then
            if attempt OPERATOR(pg_catalog.=) 20
               or pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed' then
                raise;
            end if;
        end;
        perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(key_name, 0));
    end loop;
end
$$;
