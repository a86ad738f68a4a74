"""The catalog: however a database got its version, it is the same catalog; nothing newer or edited is touched (SCENARIOS 13)."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests.support import rows, schema_dump, value

from modak import __version__
from modak.catalog import migrate as migration
from modak.catalog.migrate import migrate, migrations, require_current, script
from modak.connection import Connection, connect
from modak.embedded.server_binaries import find_server_binaries
from modak.errors import CatalogError, CatalogMissing, CatalogNewer, MigrationChanged
from modak.failpoints import FailpointError, armed

NewDatabase = Callable[..., str]


@pytest.fixture
def empty(new_database: NewDatabase) -> Iterator[Connection]:
    with connect(new_database(), autocommit=True) as connection:
        yield connection


def catalog(dsn: str) -> str:
    return schema_dump(dsn, "--schema-only")


def ledger(connection: Connection) -> list[tuple[object, ...]]:
    found = rows(connection, "select version, name, checksum from modak.schema_migrations order by version")
    return found + rows(connection, "select version, program, routines_checksum from modak.schema_meta")


def test_step_by_step_at_once_and_by_hand_give_one_catalog(new_database: NewDatabase) -> None:
    at_once, stepwise, by_hand = new_database(), new_database(), new_database()
    with connect(at_once, autocommit=True) as connection:
        migrate(connection)
        whole, expected = catalog(at_once), ledger(connection)
    with connect(stepwise, autocommit=True) as connection:
        for one in migrations():
            assert migrate(connection, upto=one.version).applied == (f"{one.version:04}_{one.name}",)
        assert (catalog(stepwise), ledger(connection)) == (whole, expected)
    psql = [str(find_server_binaries().bin_dir / "psql"), by_hand, "-qX", "-v", "ON_ERROR_STOP=1"]
    subprocess.run(psql, input=script(), text=True, check=True, capture_output=True)
    with connect(by_hand, autocommit=True) as connection:
        assert (catalog(by_hand), ledger(connection)) == (whole, expected)
        assert migrate(connection).applied == ()
        assert not migrate(connection).routines_replaced
    assert "modak.tables" in whole
    assert "check_cutline" in whole


def test_a_half_way_catalog_is_not_worked_on(empty: Connection) -> None:
    migrate(empty, upto=1)
    with pytest.raises(CatalogMissing, match="has version 1"):
        require_current(empty)
    migrate(empty)
    require_current(empty)


def test_a_second_run_changes_nothing(empty: Connection) -> None:
    first = migrate(empty)
    assert first.version == migration.current_version()
    before = rows(empty, "select xmin::text, * from modak.schema_meta"), rows(empty, "select xmin::text, * from modak.schema_migrations")
    second = migrate(empty)
    assert (second.applied, second.routines_replaced) == ((), False)
    after = rows(empty, "select xmin::text, * from modak.schema_meta"), rows(empty, "select xmin::text, * from modak.schema_migrations")
    assert after == before


def test_a_fresh_catalog_is_stamped(empty: Connection) -> None:
    migrate(empty)
    require_current(empty)
    assert value(empty, "select public.modak_version()") == __version__
    assert value(empty, "select length(catalog_id) from modak.schema_meta") == 36


def test_two_databases_have_two_identities(new_database: NewDatabase) -> None:
    seen = set()
    for _ in range(2):
        with connect(new_database(), autocommit=True) as connection:
            migrate(connection)
            seen.add(value(connection, "select catalog_id from modak.schema_meta"))
    assert len(seen) == 2


def test_changed_routines_are_replaced_and_nothing_else(empty: Connection) -> None:
    migrate(empty)
    identity = value(empty, "select catalog_id from modak.schema_meta")
    empty.execute("create or replace function public.modak_version() returns text language sql as 'select ''old'''")
    empty.execute("update modak.schema_meta set routines_checksum = 'of an older release'")
    outcome = migrate(empty)
    assert (outcome.applied, outcome.routines_replaced) == ((), True)
    assert value(empty, "select public.modak_version()") == __version__
    assert value(empty, "select catalog_id from modak.schema_meta") == identity


def test_many_at_once_leave_one_catalog(new_database: NewDatabase) -> None:
    dsn = new_database()
    outcomes: list[object] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        with connect(dsn) as connection:
            barrier.wait(60)
            try:
                outcomes.append(migrate(connection).applied)
            except Exception as error:  # noqa: BLE001
                outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    everything = tuple(f"{one.version:04}_{one.name}" for one in migrations())
    assert sorted(outcomes, key=str) == sorted([(), (), (), everything], key=str)


def test_a_newer_database_is_refused_and_untouched(empty: Connection) -> None:
    migrate(empty)
    empty.execute("insert into modak.schema_migrations (version, name, checksum) values (9999, 'future', 'x')")
    empty.execute("update modak.schema_meta set version = 9999")
    before = ledger(empty)
    for attempt in (migrate, require_current):
        with pytest.raises(CatalogNewer, match="version 9999") as refused:
            attempt(empty)
        assert "upgrade Modak" in str(refused.value.hint)
    assert ledger(empty) == before


def test_an_edited_migration_is_refused(empty: Connection) -> None:
    migrate(empty)
    empty.execute("update modak.schema_migrations set checksum = 'edited' where version = 1")
    before = ledger(empty)
    with pytest.raises(MigrationChanged, match="0001"):
        migrate(empty)
    assert ledger(empty) == before


def test_an_error_half_way_leaves_nothing(empty: Connection) -> None:
    with armed("migrate.after_migration"), pytest.raises(FailpointError):
        migrate(empty)
    assert value(empty, "select count(*) from pg_namespace where nspname ~ '^modak'") == 0
    migrate(empty)


def test_a_kill_half_way_leaves_nothing(new_database: NewDatabase) -> None:
    dsn = new_database()
    code = f"""
from modak.catalog.migrate import migrate
from modak.connection import connect
from modak.failpoints import arm
arm("migrate.after_migration=kill")
with connect({dsn!r}) as connection:
    migrate(connection)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with connect(dsn, autocommit=True) as connection:
        migrate(connection)
        require_current(connection)


def test_the_printed_script_fails_whole_on_a_migrated_database(dsn: str) -> None:
    before = catalog(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection, pytest.raises(psycopg.Error):
        connection.execute(script())  # type: ignore[call-overload]
    assert catalog(dsn) == before


def test_a_role_that_may_not_create_schemas_is_told_so(new_database: NewDatabase) -> None:
    dsn = new_database()
    with connect(dsn, autocommit=True) as connection:
        connection.execute("create role migrates_not")
        try:
            connection.execute("set role migrates_not")
            with pytest.raises(CatalogError, match="may not install the catalog") as refused:
                migrate(connection)
            assert "--print" in str(refused.value.hint)
        finally:
            connection.execute("reset role; drop role migrates_not")


def test_files_are_numbered_and_their_checksums_hold() -> None:
    assert [one.version for one in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(len(one.checksum) == 64 for one in migrations())


@pytest.mark.parametrize("folder", ["functions", "views"])
def test_one_routine_per_file_under_its_own_name_and_with_a_pinned_path(folder: str) -> None:
    for file_name, text in migration.SQL.folder(folder):
        name = file_name.removesuffix(".sql")
        assert text.count(f"create or replace {folder.removesuffix('s')} ") == 1, file_name
        assert f".{name}" in text, file_name
        if folder == "functions":
            # A body in the SQL standard's form is parsed when the function is made; a path cannot change it. Some functions run the
            # caller's own SQL, with his rights and by his path.
            if name in ("query", "modak_explain", "carry_out"):
                assert "security definer" not in text
                continue
            assert "set search_path = pg_catalog, pg_temp" in text or re.search(r"^(return |begin atomic$)", text, re.MULTILINE), file_name
