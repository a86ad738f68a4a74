"""Two writers of one row, and a publication between what a statement saw and what it does: nobody's change is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from tests import events
from tests.gateways import RunningGateway
from tests.support import register_events
from tests.writing import Session

from modak.app import App
from modak.connection import Connection
from modak.lake.iceberg import IcebergLake
from modak.registration import alter

LOCK = 77
PAUSE = f"""
    create function public.pause() returns boolean language plpgsql volatile as
    $$ begin perform pg_advisory_lock({LOCK}); perform pg_advisory_unlock({LOCK}); return true; end $$
"""
SECONDS_MAX = 60


@pytest.fixture
def connect(dsn: str) -> Iterator[Callable[[], Session]]:
    """Opens sessions that end with the test."""
    opened: list[Session] = []

    def make() -> Session:
        opened.append(psycopg.connect(dsn, options=f"-c statement_timeout={SECONDS_MAX}s"))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


@pytest.fixture
def key() -> tuple[str, ...]:
    """The registered key; a test may ask for another."""
    return ("id",)


@pytest.fixture
def cold(app: App, connection: Connection, gateway: RunningGateway, key: tuple[str, ...]) -> App:
    """E with more cold rows (21 to 60), its two cold partitions gone from the heap."""
    events.create(connection, partitions=4)
    connection.execute("insert into public.events select n, n, 'x' from generate_series(21, 60) n")
    connection.execute(PAUSE)
    events.put_under_modak(app, connection, primary_key=key)
    events.tier(app)
    events.drop_tiered(app)
    return app


class Statements:
    """Statements in sessions of their own, each in a thread."""

    def __init__(self, connection: Connection, connect: Callable[[], Session]) -> None:
        self._connection = connection
        self._connect = connect
        self._pool = ThreadPoolExecutor(40)
        self._pids: list[int] = []

    def start(self, statement: str, session: Session | None = None, *, commit: bool = True) -> Future[int | str]:
        """Its row count, or the SQLSTATE it ended with. Returns when the statement waits for something."""
        used = session or self._connect()
        before = self._waiting()
        done = self._pool.submit(self._run, used, statement, commit)
        deadline = time.monotonic() + SECONDS_MAX
        while self._waiting() <= before and not done.done() and time.monotonic() < deadline:
            time.sleep(0.01)
        return done

    def _run(self, session: Session, statement: str, commit: bool) -> int | str:
        try:
            count = session.execute(statement.encode()).rowcount
            if commit:
                session.commit()
            return count
        except psycopg.Error as error:
            session.rollback()
            return str(error.sqlstate)

    def _waiting(self) -> int:
        row = self._connection.execute(
            "select count(distinct pid) as n from pg_locks where not granted and database in "
            "(select oid from pg_database where datname = current_database() union all select 0) or not granted and database is null"
        ).fetchone()
        return int(row["n"]) if row else 0


@pytest.fixture
def statements(connection: Connection, connect: Callable[[], Session]) -> Statements:
    return Statements(connection, connect)


def values(connection: Connection) -> dict[int, tuple[int, str]]:
    rows = connection.execute("select id, event_time, val from public.events").fetchall()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: (row["event_time"], row["val"]) for row in rows}


MINE = "update public.events set val = val || '+mine' where id = {} and public.pause()"
FUNCTION = """
    create function public.nested(outer_row bigint, inner_row bigint) returns boolean language plpgsql as $$
    begin
        perform public.pause();
        update public.events set val = val || '+inner' where id = inner_row;
        return true;
    end $$
"""
# Each statement has a row (or two) of its own: what another session does to it meanwhile, and how the statement must end.
CASES: list[tuple[int, str, str | None, int | str, tuple[int, str] | None]] = [
    (21, MINE, "update public.events set val = 'theirs' where id = 21", "40001", (21, "theirs")),
    # Deleted, and the tombstone folded: nobody can tell any more that it did not move to another key.
    (22, MINE, "delete from public.events where id = 22", "40001", None),
    (23, MINE, "update public.events set event_time = 150 where id = 23", "40001", (150, "x")),
    (24, MINE, "update public.events set event_time = 250 where id = 24", "40001", (250, "x")),
    (25, MINE, None, 1, (25, "x+mine")),
    (26, MINE, "update public.events set val = 'y' where id = 26; update public.events set val = 'x' where id = 26", 1, (26, "x+mine")),
    (27, "delete from public.events where id = {} and public.pause()", "update public.events set val = 'theirs' where id = 27", "40001",
     (27, "theirs")),
    (28, "delete from public.events where id = {} and public.pause()", None, 1, None),
    (29, f"with changed as ({MINE} returning *) select * from changed", "update public.events set val = 'theirs' where id = 29", "40001",
     (29, "theirs")),
    (30, f"do $$ begin begin {MINE}; exception when division_by_zero then null; end; end $$",
     "update public.events set val = 'theirs' where id = 30", "40001", (30, "theirs")),
    (31, "set plan_cache_mode = force_generic_plan; prepare p (bigint) as update public.events set val = val || '+mine' where id = $1 and "
     "public.pause(); execute p ({})", "update public.events set val = 'theirs' where id = 31", "40001", (31, "theirs")),
    (32, "savepoint s; update public.events set val = 'no' where id = 60; rollback to s; " + MINE,
     "update public.events set val = 'theirs' where id = 32", "40001", (32, "theirs")),
    # The inner statement begins after the fold, sees its result and goes on; the outer one is as old as it is.
    (33, "update public.events set val = val || '+mine' where id = {} and public.nested(33, 34)",
     "update public.events set val = 'theirs' where id = 34", 1, (33, "x+mine")),
    (35, "update public.events set val = val || '+mine' where id = {} and public.nested(35, 36)",
     "update public.events set val = 'theirs' where id in (35, 36)", "40001", (35, "theirs")),
    (37, "update public.events set event_time = 260 where id = {} and public.pause()",
     "update public.events set val = 'theirs' where id = 37", "40001", (37, "theirs")),
    (38, "update public.events set event_time = 260 where id = {} and public.pause()", None, 1, (260, "x")),
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.inline
def test_a_correction_that_was_folded_meanwhile_is_not_overwritten(
    cold: App, connection: Connection, connect: Callable[[], Session], statements: Statements
) -> None:
    connection.execute(FUNCTION)
    # These two pretend, after the fold, that they saw its result: the guard cannot help them, and the other's change is gone.
    unguarded = """
        create function public.pretend() returns boolean language plpgsql as $$
        begin
            perform public.pause();
            perform set_config(format('modak.seen_%s', c.table_id), concat(c.revision, '/', c.tier_key_hi, '// '), true)
                   from modak.cutline c;
            return true;
        end $$
    """
    connection.execute(unguarded)
    keeper = connect()
    keeper.execute(f"select pg_advisory_lock({LOCK})")
    keeper.commit()
    waiting = {case[0]: statements.start(case[1].replace("{}", str(case[0]))) for case in CASES}
    lost = statements.start("update public.events set val = val || '+mine' where id = 40 and public.pretend()")
    risen = statements.start("update public.events set val = val || '+mine' where id = 41 and public.pretend()")
    for case in CASES:
        if case[2] is not None:
            connection.execute(case[2].encode())
    connection.execute("update public.events set val = 'theirs' where id = 40")
    connection.execute("delete from public.events where id = 41")
    assert events.fold(cold).commits == 1
    assert connection.execute("select count(*) as n from modak.delta").fetchone() == {"n": 0}
    assert not any(each.done() for each in [*waiting.values(), lost, risen])
    keeper.execute(f"select pg_advisory_unlock({LOCK})")
    outcomes = {key: done.result(SECONDS_MAX) for key, done in waiting.items()}
    assert (lost.result(SECONDS_MAX), risen.result(SECONDS_MAX)) == (1, 1)
    found = values(connection)
    # A DO block and a prepared statement in a script count otherwise.
    assert outcomes == {case[0]: case[3] for case in CASES}
    assert {case[0]: found.get(case[0]) for case in CASES} == {case[0]: case[4] for case in CASES}
    assert (found[34], found[36]) == ((34, "theirs+inner"), (36, "theirs"))
    assert (found[40], found[41]) == ((40, "x+mine"), (41, "x+mine")), "without the guard updates are lost, or this test proves nothing"


@pytest.mark.spark
@pytest.mark.inline
def test_a_hot_row_that_was_deleted_before_its_partition_went_cold_stays_deleted(
    cold: App, connection: Connection, connect: Callable[[], Session], statements: Statements
) -> None:
    keeper = connect()
    keeper.execute(f"select pg_advisory_lock({LOCK})")
    keeper.commit()
    waiting = {key: statements.start(MINE.replace("{}", str(key))) for key in (4, 5)}
    connection.execute("delete from public.events where id = 4")
    connection.execute("insert into public.events values (6, 310, 'newer')")
    events.tier(cold)
    assert connection.execute("select tier_key_hi from modak.cutline").fetchone() == {"tier_key_hi": 300}
    keeper.execute(f"select pg_advisory_unlock({LOCK})")
    # It did not wait for the deletion, so it cannot tell that from a move to another partition; run again, it finds no row.
    assert {key: done.result(SECONDS_MAX) for key, done in waiting.items()} == {4: "40001", 5: 1}
    found = values(connection)
    assert 4 not in found
    assert found[5] == (220, "hot+mine")


@pytest.mark.spark
@pytest.mark.inline
def test_the_lake_is_asked_through_the_build_in_use(
    cold: App, connection: Connection, connect: Callable[[], Session], statements: Statements
) -> None:
    """Columns change, the cold relation is built anew, and a statement that is behind a publication still finds its rows."""
    with cold.job(events.EVENTS) as job:
        added = alter.alter(job.connection, job.lake, job.table, "add column note text")
        alter.alter(job.connection, job.lake, added.table, "rename column val to word")
    keeper = connect()
    keeper.execute(f"select pg_advisory_lock({LOCK})")
    keeper.commit()
    waiting = statements.start("update public.events set word = word || '+mine', note = 'n' where id in (2, 21) and public.pause()")
    connection.execute("update modak.cutline set revision = revision + 1")
    keeper.execute(f"select pg_advisory_unlock({LOCK})")
    assert waiting.result(SECONDS_MAX) == 2
    found = connection.execute("select id, word, note from public.events where id in (2, 3, 21) order by id").fetchall()
    assert [tuple(row.values()) for row in found] == [(2, "b+mine", "n"), (3, "c", None), (21, "x+mine", "n")]


SECOND = "update public.events set val = val || '+second' where id = {}"
FIRSTS: list[tuple[str, bool, int | str, str | None]] = [
    ("update public.events set val = 'first' where id = {}", False, 1, "+second"),
    ("update public.events set val = 'first' where id = {}", True, "40001", "first"),
    ("delete from public.events where id = {}", False, 1, "+second"),
    ("delete from public.events where id = {}", True, 0, None),
    ("update public.events set event_time = event_time + 1 where id = {}", True, "40001", ""),
    ("update public.events set event_time = 251 - event_time where id = {}", True, "40001", ""),
    ("update public.events set event_time = 251 - event_time where id = {}", False, 1, "+second"),
    ("update public.events set id = id + 5000 where id = {}", True, "40001", None),
    ("update public.events set id = id + 5000, event_time = 251 - event_time where id = {}", True, "40001", None),
    ("select modak_upsert('public.events', jsonb_build_object('id', {}, 'event_time', 60, 'val', 'first'))", True, "40001", "first"),
    ("select modak_delete('public.events', jsonb_build_object('id', {}))", True, 0, None),
]


KEYS = [("id",), ("id", "event_time")]


def _kinds(connection: Connection, number: int) -> dict[str, int]:
    """Fresh rows, one of each kind: in the lake alone, late, corrected, hot."""
    keys = {"lake": 21 + number, "spilled": 101 + number, "corrected": 41 + number, "hot": 201 + number}
    connection.execute(f"insert into public.events values ({keys['spilled']}, 30, 'x'), ({keys['hot']}, 230, 'x')")
    connection.execute(f"update public.events set event_time = event_time + 1 where id = {keys['corrected']}")
    return keys


@pytest.mark.spark
@pytest.mark.inline
@pytest.mark.parametrize("key", KEYS)
def test_the_second_writer_waits_and_learns_what_became_of_the_row(
    cold: App, connection: Connection, connect: Callable[[], Session], statements: Statements, key: tuple[str, ...]
) -> None:
    # The functions want the whole key; another tier key means another row.
    firsts = [first for first in FIRSTS if "event_time" not in key or "modak_" not in first[0]]
    for number, (statement, commits, wanted, left) in enumerate(firsts):
        for kind, row in _kinds(connection, number).items():
            first = connect()
            first.execute(statement.replace("{}", str(row)).encode())
            second = statements.start(SECOND.replace("{}", str(row)))
            assert not second.done(), (statement, kind)
            first.commit() if commits else first.rollback()
            assert second.result(SECONDS_MAX) == wanted, (statement, kind)
            found = values(connection).get(row)
            assert (found is None) == (left is None), (statement, kind)
            assert found is None or found[1] in (left, f"x{left}"), (statement, kind, found)
            assert ("5000" in statement) == (row + 5000 in values(connection))


@pytest.mark.spark
@pytest.mark.inline
@pytest.mark.parametrize("key", KEYS)
def test_a_row_that_went_elsewhere_between_look_and_write_is_not_taken_for_deleted(
    cold: App, connection: Connection, connect: Callable[[], Session], statements: Statements, key: tuple[str, ...]
) -> None:
    """Nobody waits here: the other has committed before the statement comes to the row. On the heap's own name, too."""
    changes = [
        "update public.events set event_time = event_time + 1 where id = {}",
        "update public.events set event_time = 251 - event_time where id = {}",
        "update public.events set id = id + 5000 where id = {}",
        "delete from public.events where id = {}",
        "update public.events_hot set event_time = event_time + 1 where id = {}",
        "update public.events_hot set id = id + 5000, event_time = 251 - event_time where id = {}",
    ]
    rows = [(change, kind, row) for number, change in enumerate(changes) for kind, row in _kinds(connection, number).items()]
    # The heap's own name does not show what only the lake has.
    rows = [each for each in rows if "events_hot" not in each[0] or each[1] in ("hot", "spilled")]
    keeper = connect()
    keeper.execute(f"select pg_advisory_lock({LOCK})")
    keeper.commit()
    waiting = [statements.start(MINE.replace("{}", str(row))) for _, _, row in rows]
    for change, _, row in rows:
        assert connection.execute(change.replace("{}", str(row)).encode()).rowcount == 1
    keeper.execute(f"select pg_advisory_unlock({LOCK})")
    for (change, kind, _), done in zip(rows, waiting, strict=True):
        # A deletion in the heap cannot be told from a move to another partition afterwards; that of a lake's row can.
        wanted = 0 if change.startswith("delete") and kind == "lake" else "40001"
        assert done.result(SECONDS_MAX) == wanted, (change, kind)
    assert not any("+mine" in val for _, val in values(connection).values())


@pytest.mark.spark
@pytest.mark.inline
@pytest.mark.parametrize("key", KEYS)
def test_a_statement_that_meets_a_row_twice_moves_it_once(cold: App, connection: Connection) -> None:
    connection.execute("insert into public.events values (101, 30, 'x')")
    for row in (2, 101, 4):
        for sets in ("event_time = event_time + 1", "event_time = 251 - event_time", "id = 5000 + id", "id = id - 5000"):
            which = row + 5000 if "- 5000" in sets else row
            found = connection.execute(f"update public.events set {sets} from (values (1), (2)) v(n) where id = {which}")
            assert found.rowcount == 1, (row, sets)
    assert {row: values(connection)[row][0] for row in (2, 101, 4)} == {2: 230, 101: 220, 4: 40}


@pytest.mark.spark
@pytest.mark.inline
def test_what_was_committed_before_a_statement_is_no_conflict(cold: App, connection: Connection, connect: Callable[[], Session]) -> None:
    session = connect()
    session.execute("update public.events set val = 'begun' where id = 60")  # a transaction that began long ago
    for number in range(3):
        connection.execute("update public.events set val = val || '+other' where id in (2, 4)")
        assert session.execute("update public.events set val = val || '+own' where id in (21, 5)").rowcount == 2
        connection.execute(f"delete from public.events where id = {30 + number}")
    session.commit()
    assert session.execute("update public.events set val = val || '+own' where id in (2, 4)").rowcount == 2
    session.commit()
    found = values(connection)
    assert (found[2][1], found[4][1]) == ("b+other+other+other+own", "hot+other+other+other+own")
    assert found[21][1] == "x+own+own+own"


@pytest.mark.spark
@pytest.mark.inline
@pytest.mark.parametrize("row", [2, 4])
def test_a_transaction_that_keeps_its_snapshot_gets_40001(
    cold: App, connection: Connection, connect: Callable[[], Session], row: int
) -> None:
    early = connect()
    early.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    early.execute("select count(*) from public.events")
    connection.execute(f"update public.events set val = 'theirs' where id = {row}")
    with pytest.raises(psycopg.errors.SerializationFailure):
        early.execute(f"update public.events set val = val || '+mine' where id = {row}")
    early.rollback()
    assert early.execute(f"update public.events set val = val || '+mine' where id = {row}").rowcount == 1
    early.commit()
    assert values(connection)[row][1] == "theirs+mine"


@pytest.mark.spark
@pytest.mark.inline
def test_a_kept_snapshot_does_not_write_over_a_fold(cold: App, connection: Connection, connect: Callable[[], Session]) -> None:
    sessions = {key: connect() for key in (2, 3)}
    for early in sessions.values():
        early.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        early.execute("select count(*) from public.events")
    connection.execute("update public.events set val = 'theirs' where id = 2")
    events.fold(cold)
    for key, early in sessions.items():
        with pytest.raises(psycopg.errors.SerializationFailure):
            early.execute(f"update public.events set val = val || '+mine' where id = {key}")


def _together(connect: Callable[[], Session], writers: int, work: Callable[[Session, int], None]) -> list[BaseException]:
    """The same work by several sessions at once; what went wrong."""
    gate, failed = threading.Barrier(writers), list[BaseException]()
    sessions = [connect() for _ in range(writers)]

    def run(number: int) -> None:
        try:
            gate.wait(SECONDS_MAX)
            work(sessions[number], number)
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    assert not any(thread.is_alive() for thread in threads)
    return failed


@pytest.mark.spark
@pytest.mark.inline
def test_eight_writers_of_different_cold_rows_do_not_meet(cold: App, connection: Connection, connect: Callable[[], Session]) -> None:
    def work(session: Session, number: int) -> None:
        for round_number in range(4):
            session.execute(f"update public.events set val = val || '{round_number}' where id in ({21 + number}, {31 + number})")
            session.execute(f"insert into public.events values ({1000 + number * 10 + round_number}, {round_number}, 'late')")
            session.execute(f"delete from public.events where id = {41 + number}")
            session.commit()

    assert _together(connect, 8, work) == []
    found = values(connection)
    assert [found[key][1] for key in (*range(21, 29), *range(31, 39))] == ["x0123"] * 16
    assert [key for key in range(41, 49) if key in found] == []
    assert sum(key >= 1000 for key in found) == 32


@pytest.mark.spark
@pytest.mark.inline
def test_upserts_of_one_key_at_once_leave_one_row_and_no_error(cold: App, connection: Connection, connect: Callable[[], Session]) -> None:
    """One key of each kind: in the lake, hot, and not there yet on either side; each is moved to and fro as well."""

    def work(session: Session, number: int) -> None:
        for round_number in range(3):
            for key, place in ((2, 20), (4, 210), (500, 50), (501, 250)):
                image = f"jsonb_build_object('id', {key}, 'event_time', {place}, 'val', '{number}.{round_number}')"
                session.execute(f"select modak_upsert('public.events', {image})".encode())
                session.commit()

    assert _together(connect, 8, work) == []
    found = values(connection)
    assert [found[key][0] for key in (2, 4, 500, 501)] == [20, 210, 50, 250]
    assert all(found[key][1].endswith(".2") for key in (2, 4, 500, 501))


def test_of_two_who_insert_one_checked_key_the_second_waits(
    connection: Connection, lake: IcebergLake, connect: Callable[[], Session], statements: Statements
) -> None:
    register_events(connection, lake, check_cold_keys=True)
    for key, commits, wanted in ((10, True, "23505"), (11, False, 1)):
        first = connect()
        first.execute(f"insert into public.events values ({key}, -1, 'first')")
        second = statements.start(f"insert into public.events values ({key}, -2, 'second')")
        assert not second.done()
        first.commit() if commits else first.rollback()
        assert second.result(SECONDS_MAX) == wanted
    assert {key: row for key, row in values(connection).items() if key >= 10} == {10: (-1, "first"), 11: (-2, "second")}


@pytest.mark.spark
@pytest.mark.inline
@pytest.mark.parametrize("places", [(210, 220), (50, 220), (210, 50), (50, 60)])
@pytest.mark.parametrize("commits", [True, False])
def test_two_upserts_of_one_new_key_in_two_places_leave_one_row(
    cold: App, connection: Connection, connect: Callable[[], Session], statements: Statements, places: tuple[int, int], commits: bool
) -> None:
    first = connect()
    upsert = "select modak_upsert('public.events', jsonb_build_object('id', 900, 'event_time', {}, 'val', '{}'))"
    first.execute(upsert.format(places[0], "first").encode())
    second = statements.start(upsert.format(places[1], "second"))
    assert not second.done()
    first.commit() if commits else first.rollback()
    assert second.result(SECONDS_MAX) == 1
    assert values(connection)[900] == (places[1], "second")


@pytest.mark.spark
@pytest.mark.inline
def test_many_upserts_in_one_transaction_need_no_locks_for_each(cold: App, connection: Connection) -> None:
    with connection.transaction():
        connection.execute(
            "select public.modak_upsert('public.events', jsonb_build_object('id', n, 'event_time', 210, 'val', 'x')) "
            "from generate_series(2000, 2200) n"
        )
        row = connection.execute("select count(*) as n from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()").fetchone()
        assert row is not None
        assert row["n"] < 10


@pytest.mark.spark
@pytest.mark.inline
@pytest.mark.parametrize("commits", [True, False])
def test_two_cold_inserts_of_one_key_at_once_leave_one_copy(
    cold: App, connection: Connection, connect: Callable[[], Session], statements: Statements, commits: bool
) -> None:
    """The second replaces what the first has inserted, with its copy in the spill: nothing is left to come back, or to be in the way."""
    first = connect()
    first.execute("insert into public.events values (500, 50, 'first')")
    second = statements.start("insert into public.events values (500, 60, 'second')")
    assert not second.done()
    first.commit() if commits else first.rollback()
    assert second.result(SECONDS_MAX) == 1
    copies = connection.execute("select event_time, val from public.events_spill where id = 500").fetchall()
    assert copies == [{"event_time": 60, "val": "second"}]
    assert values(connection)[500] == (60, "second")
    connection.execute("delete from public.events where id = 500")
    assert events.fold(cold).corrections == 1
    connection.execute("insert into public.events values (500, 50, 'again')")
    assert values(connection)[500] == (50, "again")
