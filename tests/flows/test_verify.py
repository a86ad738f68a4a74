"""Verify finds any difference by content, names the row with both values, and repairs where the heap is the truth."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests import events, seam
from tests.events import EVENTS, ROWS, drop_tiered, put_under_modak, tier
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.support import reclaim_all, value

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.profile import Profile
from modak.core.registration import Options
from modak.core.table import Name
from modak.jobs import compare
from modak.jobs import fold as folding
from modak.jobs import tier as tiering
from modak.jobs.compare import Comparison
from modak.jobs.differences import Difference
from modak.jobs.verify import Verified, _Mending, verify
from modak.registration.register import register

pytestmark = pytest.mark.spark

ALL = {str(row[0]): row for row in ROWS}


@pytest.fixture
def tiered(app: App, connection: Connection) -> App:
    events.create(connection)
    put_under_modak(app, connection)
    with inlined():
        tier(app)
    return app


def run(app: App, *, repair: bool = False) -> Verified:
    with app.job(EVENTS) as job:
        return verify(job, repair=repair)


def tamper(connection: Connection, statement: str) -> None:
    """Change the heap copy behind the trigger's back."""
    connection.execute("alter table public.p0 disable trigger user")
    connection.execute(statement)
    connection.execute("alter table public.p0 enable always trigger modak_capture")
    connection.execute("alter table public.p0 enable always trigger modak_capture_truncate")


def test_the_same_contents_are_the_same(tiered: App) -> None:
    found = run(tiered)
    assert (found.partitions, found.rows, found.differences) == (2, 3, ())


@pytest.mark.parametrize(
    ("statement", "key", "heap", "lake"),
    [
        ("update public.p0 set val = 'other' where id = 1", "1", "other", '"val":"a"'),
        ("update public.p0 set val = null where id = 1", "1", "null", '"val":"a"'),
        ("insert into public.p0 values (77, 77, 'extra')", "77", "extra", None),
        ("delete from public.p0 where id = 2", "1:2", None, '"id":2'),
    ],
)
def test_a_difference_is_named_with_both_values_and_repaired(
    tiered: App, connection: Connection, statement: str, key: str, heap: str | None, lake: str | None
) -> None:
    tamper(connection, statement)
    found = run(tiered)
    assert [difference.key for difference in found.differences] == [key]
    difference = found.differences[0]
    assert (difference.heap is None) == (heap is None)
    assert (difference.lake is None) == (lake is None)
    assert heap is None or heap in str(difference.heap)
    assert lake is None or lake in str(difference.lake)
    assert run(tiered, repair=True).repaired == 1
    assert run(tiered).differences == ()
    now = {str(row["id"]): (row["id"], row["event_time"], row["val"]) for row in connection.execute("select * from public.events_hot")}
    assert seam.read(tiered, EVENTS) == now


def test_writers_who_go_on_are_no_difference(tiered: App, connection: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heap, delta and lake are read one after the other, and must still be those of one moment."""
    connection.execute("update public.events_hot set val = 'corrected' where id = 3")
    look = Comparison.look_for_delta

    def then_write(self: Comparison, session: Connection) -> None:
        look(self, session)
        with psycopg.connect(dsn, autocommit=True) as writer:
            writer.execute("update public.events_hot set val = val || '!' where id < 3")

    monkeypatch.setattr(Comparison, "look_for_delta", then_write)
    assert run(tiered).differences == ()


def test_rows_that_the_delta_corrects_are_compared_with_it(tiered: App, connection: Connection) -> None:
    connection.execute("update public.events_hot set val = 'corrected' where id = 1")
    connection.execute("delete from public.events_hot where id = 3")
    assert run(tiered).differences == ()
    connection.execute("""update modak.delta set payload = payload || '{"val": "wrong"}' where pk = '1'""")
    assert [difference.key for difference in run(tiered).differences] == ["1"]
    assert run(tiered, repair=True).repaired == 1
    assert run(tiered).differences == ()


def test_a_key_twice_in_the_lake_is_found_after_the_heap_is_gone(tiered: App) -> None:
    drop_tiered(tiered)
    assert run(tiered).differences == ()
    tiered.spark(Profile("default")).sql("insert into modak.public.events values (1, 10, 'a')")
    # Not published, so nobody sees it, and verify looks at S only.
    assert run(tiered).differences == ()


@pytest.mark.parametrize(("damage", "found"), [
    (Path.unlink, "the file is gone"),
    (lambda file: file.write_bytes(file.read_bytes()[:-10]), "were written"),
    (lambda file: file.write_bytes(b"x" * file.stat().st_size), "no Parquet"),
    (lambda file: _other_rows(file), "rows, and 1 were written|bytes, and"),
], ids=["gone", "cut short", "overwritten", "exchanged"])  # fmt: skip
def test_a_file_of_the_lake_that_is_not_what_was_written(tiered: App, damage: Callable[[Path], object], found: str) -> None:
    """The partitions are gone, and with them the only other copy."""
    drop_tiered(tiered)
    assert run(tiered).differences == ()
    file = next(path for path in (tiered.settings.data / "warehouse").rglob("*.parquet") if parquet.read_metadata(path).num_rows == 1)
    damage(file)
    [difference] = run(tiered).differences
    assert difference.key.endswith(file.name)
    assert re.search(found, difference.lake or "")


def _other_rows(file: Path) -> None:
    rows = parquet.read_table(file)
    parquet.write_table(pa.concat_tables([rows, rows]), file)


def test_many_differences_are_bisected(app: App, connection: Connection) -> None:
    events.create(connection)
    connection.execute("insert into public.events select n, n % 100, 'v' || n from generate_series(1000, 60999) n")
    put_under_modak(app, connection)
    tier(app, upto=100)
    tamper(connection, "update public.p0 set val = 'x' where id in (1234, 34567, 60001)")
    assert sorted(difference.key for difference in run(app).differences) == ["1234", "34567", "60001"]


def test_very_many_rows_of_one_tier_key_are_cut_by_their_own_keys(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of millions of rows cannot be cut by the tier key, and is not held in memory either."""
    monkeypatch.setattr(compare, "ROWS_MAX", 500)
    events.create(connection)
    connection.execute("insert into public.events select n, 50, 'v' || n from generate_series(1000, 6999) n")
    put_under_modak(app, connection)
    tier(app, upto=100)
    tamper(connection, "update public.p0 set val = 'x' where id in (1234, 3456, 6001)")
    looked: list[int] = []
    collect = Comparison._images

    def images(self: Comparison, session: Connection, lake: object, parts: object, keys: list[str], theirs: dict[str, int]) -> object:
        looked.append(len(theirs))
        return collect(self, session, lake, parts, keys, theirs)  # type: ignore[arg-type]

    monkeypatch.setattr(Comparison, "_images", images)
    assert sorted(difference.key for difference in run(app).differences) == ["1234", "3456", "6001"]
    assert looked
    assert max(looked) < 500


def test_however_many_differences_there_are_all_are_repaired(app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "IMAGES_MAX", 64)
    events.create(connection)
    connection.execute("insert into public.events select n, n % 100, 'v' || n from generate_series(1000, 1999) n")
    put_under_modak(app, connection)
    tier(app, upto=100)
    connection.execute("update public.events_hot set val = 'corrected' where id > 1900")
    tamper(connection, "update public.p0 set val = 'x' where id % 2 = 0; delete from public.p0 where id % 10 = 1 and id <= 1900; "
                       "insert into public.p0 select n, 7, 'new' from generate_series(3000, 3199) n")  # fmt: skip
    assert run(app).truncated
    found = run(app, repair=True)
    assert (found.truncated, len(found.differences)) == (True, 100)
    assert found.repaired > 700
    assert run(app).differences == ()
    now = {str(row["id"]): (row["id"], row["event_time"], row["val"]) for row in connection.execute("select * from public.events_hot")}
    assert seam.read(app, EVENTS) == now


def test_a_row_that_comes_back_during_a_repair_is_not_hidden(
    tiered: App, connection: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison found it in the lake alone; by the time it is mended the heap has it, and the delta says what it is."""
    tamper(connection, "delete from public.p0 where id = 2")
    mend = _Mending.mend

    def then_mend(self: _Mending, differences: Sequence[Difference]) -> None:
        with psycopg.connect(dsn, autocommit=True) as writer:
            writer.execute("insert into public.events_hot values (2, 20, 'again')")
        mend(self, differences)

    monkeypatch.setattr(_Mending, "mend", then_mend)
    run(tiered, repair=True)
    assert seam.read(tiered, EVENTS)["2"] == (2, 20, "again")


@pytest.mark.parametrize(
    ("meanwhile", "left"),
    [
        ("update public.events_hot set val = 'newer' where id = 1", (1, 10, "newer")),
        ("update public.events_hot set event_time = 110 where id = 1", (1, 110, "behind")),
        ("delete from public.events_hot where id = 1", None),
    ],
)
def test_a_writer_who_has_not_committed_yet_is_waited_for(
    tiered: App, connection: Connection, dsn: str, meanwhile: str, left: tuple[int, int, str] | None
) -> None:
    """A repair takes the heap's row as it is when nobody changes it any more, and not as it was before."""
    tamper(connection, "update public.p0 set val = 'behind' where id in (1, 2)")

    def repair() -> int:
        with tiered.job(EVENTS) as job:
            mending = _Mending(job, [Name("public", "p0")], job.columns(job.relation()))
            mending.mend([Difference(key, "behind", "other", "p0") for key in ("1", "2")])
            return mending.repaired

    with psycopg.connect(dsn) as writer, ThreadPoolExecutor(1) as other:
        writer.execute(meanwhile.encode())
        repaired = other.submit(repair)
        until = time.monotonic() + 30
        while not value(connection, "select count(*) from pg_locks where not granted") and time.monotonic() < until:
            time.sleep(0.02)
        assert not repaired.done()
        writer.commit()
        assert repaired.result() == (2 if left and left[1] == 10 else 1)
    found = seam.read(tiered, EVENTS)
    assert found["2"] == (2, 20, "behind")
    assert found.get("1") == left


def test_a_late_row_of_a_region_without_that_period(app: App, connection: Connection, gateway: RunningGateway) -> None:
    """Folded, it stands in the lake alone, in a period that another region still has a copy of: no difference, and not to be mended."""
    name, profile = Name("public", "readings"), profiles.get(connection, None)
    connection.execute(
        "create table public.readings (region text, id bigint, at integer, primary key (region, id, at)) partition by list (region)"
    )
    for region, first in (("eu%", 0), ("us", 1)):
        parent = f"public.readings_{region[:2]}"
        connection.execute(f"create table {parent} partition of public.readings for values in ('{region}') partition by range (at)")
        for number in range(first, 3):
            ends = f"from ({number * 100}) to ({number * 100 + 100})"
            connection.execute(f"create table public.r_{region[:2]}_{number} partition of {parent} for values {ends}")
    connection.execute("insert into public.readings select 'eu%', n, n * 10 from generate_series(0, 28) n")
    chosen = Options(tier_key="at", primary_key=("region", "id"), lag="0")
    register(connection, app.lake(profile), name, chosen, profile=profile.name)
    with app.job(name) as job:
        tiering.tier(job, upto=100)
        connection.execute("insert into public.readings values ('us', 1, 50), ('us', 2, 60)")
        folding.fold(job)
        assert verify(job, repair=True).differences == ()
        connection.execute("alter table public.r_eu_0 disable trigger user")
        connection.execute("delete from public.r_eu_0 where id = 3")
        assert [found.lake for found in verify(job).differences] == ['{"region":"eu%","id":3,"at":30}']
        assert verify(job, repair=True).repaired == 1
        assert reclaim_all(job) == ("public.r_eu_0",)
    found = connection.execute("select id from public.readings where region = 'us' and at < 100 order by id").fetchall()
    assert [row["id"] for row in found] == [1, 2]
