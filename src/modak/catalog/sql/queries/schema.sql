-- name: list_migrations
select version, name, checksum from modak.schema_migrations order by version;

-- name: record_migration
insert into modak.schema_migrations (version, name, checksum) values (%(version)s, %(name)s, %(checksum)s);

-- name: read_schema_meta
select version, program, routines_checksum from modak.schema_meta;

-- name: write_schema_meta
insert into modak.schema_meta (version, program, routines_checksum)
values (%(version)s, %(program)s, %(routines_checksum)s)
on conflict (singleton) do update
   set version = excluded.version, program = excluded.program, routines_checksum = excluded.routines_checksum, updated_at = now();
