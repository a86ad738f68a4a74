-- Refuse a default that is more than one expression. Between the parentheses that it will stand in it can then not end them: what is left
-- after its strings and quoted names are taken out has no comment, no end of a statement, no other kind of quote, and closes only what it opened.
create or replace function modak.check_lake_default(p_column text, p_default text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    bare text := regexp_replace(p_default, '''([^'']|'''')*''|"([^"]|"")*"', ' x ', 'g');
    letter text;
    depth integer := 0;
begin
    if p_default is null then
        return;
    end if;
    foreach letter in array regexp_split_to_array(regexp_replace(bare, '[^()]', '', 'g'), '') loop
        depth := depth + case letter when '(' then 1 when ')' then -1 else 0 end;
        exit when depth < 0;
    end loop;
    if depth <> 0 or trim(bare) = '' or bare ~ '[;$''"\\]|--|/\*' or p_default ~ '\\' then
        raise exception 'the default of column "%" is not one expression: %', p_column, p_default
            using errcode = 'syntax_error',
                  hint = 'A default is an expression as after DEFAULT in CREATE TABLE, as in ''new'' with its quotes, 0, now(). Not with backslashes or $.';
    end if;
end
$$;
