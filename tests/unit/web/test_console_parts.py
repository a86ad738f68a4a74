"""Parts of the console that need neither a server nor a database: pictures, words, sessions, and what a template does to evil text."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from markupsafe import Markup
from starlette.requests import Request

from modak.core.partition import Partition, PartitionState
from modak.core.tier_key import KEY_MAX, KEY_MIN, TierKeyType
from modak.errors import UsageError
from modak.web.console import charts, query, session, views, words
from modak.web.console.charts import Line
from modak.web.console.guard import Guard, local_path
from modak.web.console.rendering import Rendering
from modak.web.console.session import Access, Sessions, Throttle
from modak.worker.samples import Samples

EVIL = "<script>alert(1)</script>\"'&"
DAY = 86_400_000_000


def drawn(markup: Markup) -> ElementTree.Element:
    """The picture as a tree: what is not well-formed has none."""
    return ElementTree.fromstring(f"<div>{markup}</div>")


def all_of(markup: Markup, tag: str) -> list[ElementTree.Element]:
    return list(drawn(markup).iter(tag))


# Pictures


@pytest.mark.parametrize(
    ("top", "ticks"),
    [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (14, [0, 5, 10, 15]), (100, [0, 25, 50, 75, 100]), (float("nan"), [0, 1])],
)
def test_ticks_are_round_and_reach_the_top(top: float, ticks: list[float]) -> None:
    assert charts.nice_ticks(top) == pytest.approx(ticks)


@pytest.mark.parametrize("top", [1e-9, 0.3, 7, 99.999, 12345, 2**63])
def test_ticks_hold_the_top_and_are_few(top: float) -> None:
    ticks = charts.nice_ticks(top)
    assert ticks[-1] >= top * (1 - 1e-9)
    assert 2 <= len(ticks) <= 6


def test_a_line_chart_stays_in_its_frame_and_keeps_peaks() -> None:
    points = [(float(at), 1000.0 if at == 777 else 1.0) for at in range(2000)]
    made = charts.line_chart("Lag", [Line("lag", points)])
    path = next(one for one in all_of(made, "path") if one.get("class") == "chart-line chart-one")
    places = [tuple(map(float, part.strip("ML").split(","))) for part in (path.get("d") or "").split(" ")]
    assert all(0 <= x <= 640 and 0 <= y <= 190 for x, y in places)
    assert len(places) <= 302
    assert min(y for _, y in places) < 20, "the peak is gone"


def test_pictures_say_what_they_show() -> None:
    made = charts.line_chart(
        "Size", [Line("cold", [(0, 2048.0), (60, 4096.0)], "cold"), Line("hot", [(0, 0.0), (60, 1024.0)], "hot")], kind="bytes"
    )
    label = all_of(made, "svg")[0].get("aria-label") or ""
    assert ("cold now 4 KiB" in label, "hot now 1 KiB" in label) == (True, True)
    assert [one.text for one in all_of(made, "span") if one.get("class") == "quiet"] == ["4 KiB", "1 KiB"]
    assert "No figures yet." in charts.line_chart("Size", [Line("cold", [])])


def test_bars_stack() -> None:
    bars = [(0.0, [("tiering", 100.0), ("compaction", 50.0)]), (10.0, [("tiering", 0.0)])]
    made = charts.bar_chart("Rows", bars, looks=["compaction", "tiering"], first=0, last=20, step=10)
    rects = all_of(made, "rect")
    assert [one.find("title").text for one in rects] == ["compaction: 50", "tiering: 100"]  # type: ignore[union-attr]
    low, high = rects
    assert float(high.get("y") or 0) + float(high.get("height") or 0) == pytest.approx(float(low.get("y") or 0), abs=0.2)


def parts(*ranges: tuple[int, int, PartitionState]) -> list[Partition]:
    return [Partition("public", f"p{number}", lower, upper, state) for number, (lower, upper, state) in enumerate(ranges)]


def test_the_map_has_every_partition_in_its_place() -> None:
    hot, cold = PartitionState.HOT, PartitionState.DROPPED
    made = charts.partition_map("Map", parts((0, DAY, cold), (DAY, 3 * DAY, hot)), TierKeyType.TIMESTAMPTZ, line=DAY)
    rects = [one for one in all_of(made, "rect") if "map-part" in (one.get("class") or "")]
    assert [one.get("class") for one in rects] == ["map-part state-dropped", "map-part state-hot"]
    assert float(rects[1].get("width") or 0) == pytest.approx(2 * float(rects[0].get("width") or 0), rel=0.02)
    mark = next(one for one in all_of(made, "g") if one.get("class") == "mark-line")
    assert float(mark.find("line").get("x1") or 0) == pytest.approx(float(rects[1].get("x") or 0), abs=1)  # type: ignore[union-attr]
    assert mark.find("text").text == "T 2 Jan 1970"  # type: ignore[union-attr]


@pytest.mark.parametrize("ends", [(KEY_MIN, 100), (100, KEY_MAX), (KEY_MIN, KEY_MAX), (5, 5)])
def test_the_map_takes_open_and_empty_partitions(ends: tuple[int, int]) -> None:
    drawn(charts.partition_map("Map", parts((*ends, PartitionState.HOT)), TierKeyType.BIGINT, line=KEY_MIN))


def test_a_map_of_very_many_partitions_joins_them() -> None:
    cold, hot = PartitionState.DROPPED, PartitionState.HOT
    many = parts(*((number, number + 1, cold if number < 9000 else hot) for number in range(10_000)))
    made = charts.partition_map("Map", many, TierKeyType.BIGINT, line=9000)
    assert [one.find("title").text for one in all_of(made, "rect")[1:]] == [  # type: ignore[union-attr]
        "p0 … p8999: dropped, 0 to 9,000",
        "p9000 … p9999: hot, 9,000 to 10,000",
    ]
    assert "10000 partitions, 9000 dropped, 1000 hot" in made


def test_no_picture_has_a_style_of_its_own_or_believes_its_names() -> None:
    evil = Partition("public", EVIL, 0, 10, PartitionState.HOT)
    pictures = [
        charts.partition_map(EVIL, [evil], TierKeyType.BIGINT, line=5),
        charts.line_chart(EVIL, [Line(EVIL, [(0, 1.0), (1, 2.0)]), Line("other", [(0, 1.0)])]),
        charts.line_chart(EVIL, [], empty=EVIL),
        charts.bar_chart(EVIL, [(0.0, [(EVIL, 1.0)])], looks=[EVIL], first=0, last=1, step=1),
        charts.spark(EVIL, [(0, 1.0), (1, 2.0)]),
        charts.split_bar(EVIL, [("hot", 1.0)]),
    ]
    for made in pictures:
        assert "<script" not in made
        assert not [one for one in drawn(made).iter() if one.get("style") or any(name.startswith("on") for name in one.attrib)]


# Words


def test_keys_are_dates_people_read() -> None:
    stamp, day, number = TierKeyType.TIMESTAMPTZ, TierKeyType.DATE, TierKeyType.BIGINT
    assert words.key(0, stamp) == "1 Jan 1970"
    assert words.key(DAY + 3_661_000_000, stamp) == "2 Jan 1970, 01:01:01"
    assert words.key(-719_529, day) == "31 Dec 2 BC"
    assert words.key(1_234_567, number) == "1,234,567"
    assert (words.key(KEY_MIN, number), words.key(KEY_MAX, stamp), words.key(None, number)) == ("the beginning", "the end", "none")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "less than a second"),
        (0.4, "0.4 s"),
        (1, "1 second"),
        (90, "1.5 minutes"),
        (3600, "1 hour"),
        (200_000, "2.3 days"),
        (1e9, "32 years"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert words.span(seconds) == text


def test_sizes_and_moments() -> None:
    assert [words.size(count) for count in (None, 0, 1023, 2048, 150 * 1024, 5 * 1024**4)] == ["–", "0 bytes", "1,023 bytes", "2.0 KiB", "150 KiB", "5.0 TiB"]  # fmt: skip  # noqa: E501
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert words.ago(now - timedelta(seconds=30), now) == "30 seconds ago"
    assert (words.ago(None, now), words.ago(now, now)) == ("never", "just now")
    assert words.moment(now) == "31 Jan 2026, 12:00:00 UTC"


# Sessions


def test_access_is_decided_by_password_and_address() -> None:
    assert session.access("secret", "0.0.0.0") is Access.GUARDED
    assert session.access(None, "127.0.0.1") is Access.OPEN
    assert session.access("", "localhost") is Access.OPEN
    assert session.access(None, "::1") is Access.OPEN
    for host in ("0.0.0.0", "::", "10.0.0.5", "db.example", ""):
        assert session.access(None, host) is Access.OFF, host


@pytest.mark.parametrize("host", ["127.0.0.1:9090", "localhost", "LOCALHOST:1", "[::1]:9090", "127.9.9.9"])
def test_own_names(host: str) -> None:
    assert session.names_loopback(host)


@pytest.mark.parametrize("host", ["", "evil.example:9090", "127.0.0.1.evil.example", "10.0.0.1", "[fe80::1]:1", "localhost.evil"])
def test_names_of_others(host: str) -> None:
    assert not session.names_loopback(host)


def test_sessions_end_and_are_few() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.open()
    assert (sessions.find(first.token), sessions.find("x"), sessions.find("")) == (first, None, None)
    assert first.token not in repr(first)
    others = [sessions.open() for _ in range(session.SESSIONS_MAX)]
    assert sessions.find(first.token) is None, "the oldest goes when there are too many"
    now[0] += session.SESSION_SECONDS
    assert sessions.find(others[-1].token) is None
    closed = sessions.open()
    sessions.close(closed.token)
    assert sessions.find(closed.token) is None


def test_guessing_has_to_wait() -> None:
    now = [1000.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(5):
        assert throttle.wait("a") == 0
        throttle.failed("a")
    assert throttle.wait("a") == 60
    assert throttle.wait("b") == 0, "one address does not lock out another"
    now[0] += 61
    assert throttle.wait("a") == 0
    for number in range(60):
        throttle.failed(f"address {number}")
    assert throttle.wait("new") > 0, "many addresses together have to wait as well"


def test_passwords() -> None:
    assert session.is_password("sécret", "sécret")
    assert not session.is_password("", "secret")
    assert not session.is_password("secret" + "x" * 5000, "secret")
    assert session.basic_password("Basic dXNlcjpwYTpzcw==") == "pa:ss"
    for header in ("", "Basic", "Basic !!!", "Bearer dXNlcjpwYTpzcw==", "Basic dXNlcg==", "Basic /////w=="):
        assert session.basic_password(header) is None, header


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil.example", "", "evil", "/login?next=/login", "/a\nb", "/" + "x" * 600]
)
def test_nobody_is_sent_away_after_the_log_in(path: str) -> None:
    assert local_path(path) == "/"


def test_pages_of_ours_are_gone_back_to() -> None:
    assert local_path("/tables/public.orders?said=fold") == "/tables/public.orders?said=fold"


# Queries and templates


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ; ",
        "delete from t",
        "copy t to program 'x'",
        "do $$ begin end $$",
        "begin",
        "set role x",
        "-- select\ndrop table t",
        "x" * 30_000,
        "select '\0'",
    ],
)
def test_only_queries_run(text: str) -> None:
    with pytest.raises(UsageError):
        query.check(text)


@pytest.mark.parametrize(
    "text", ["select 1;", " (select 1)", "with a as (select 1) table a", "VALUES (1)", "table t", "-- why\n/* a */ select 1"]
)
def test_queries_of_every_kind(text: str) -> None:
    assert query.check(text)


def test_no_text_keeps_the_server_busy() -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match="only queries run here"):
        query.check("/**/" * 25 + "x")
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
@pytest.mark.parametrize(("length", "shown"), [(0, 0), (999, 999), (1000, 1000), (1001, 1001), (5_000_000, 1001)])
def test_of_a_value_the_beginning_is_kept(letter: str, length: int, shown: int) -> None:
    found = query._Text(0).load((letter * length).encode())
    assert found == (letter * length if length <= 1000 else letter * 1000 + "…")
    assert len(found) == shown


def test_wide_results_are_shown_quickly() -> None:
    outcome = query.Outcome(tuple(map(str, range(200))), (("1",) * 200,) * 500)
    began = time.monotonic()
    shown = views.query("select", outcome=outcome)["result"]
    assert shown["rows"][499][199] == ("1", True)
    assert time.monotonic() - began < 5


def test_templates_escape_what_they_are_given() -> None:
    rendering = Rendering(Guard(Access.OPEN))
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    worker = {"role": "standby", "title": EVIL}
    page = rendering.page(request, "error.html", None, 404, None, worker=worker, message=EVIL, hint=EVIL, retry=False, code=404).body
    assert b"<script>alert" not in bytes(page)
    assert bytes(page).count(b"&lt;script&gt;") == 4


def test_templates_have_nothing_inline() -> None:
    from importlib import resources

    for entry in resources.files("modak.web.console").joinpath("templates").iterdir():
        text = entry.read_text(encoding="utf-8")
        assert "|safe" not in text, entry.name
        assert " style=" not in text, entry.name
        assert "<style" not in text, entry.name
        assert " onclick" not in text, entry.name
        assert "javascript:" not in text, entry.name
        assert text.count("<script") == text.count("<script src="), entry.name
        assert "http://" not in text, entry.name
        assert "https://" not in text, entry.name


# Pages of tables that no other test has


def line(**more: Any) -> dict[str, Any]:
    cutline = {"t": None, "tier_key_hi": KEY_MIN, "s": None, "r": None, "retention_line": None, "updated_at": NOW}
    return {
        "table": "public.odd", "mode": "mirrored", "surface": "view", "enabled": True, "tier_key_type": "bigint", "cutline": cutline,
        "partition_states": {}, "delta_rows": 0, "staged_loads": 0, "read_pins": 1, "copying": False, "mirror": None, "problem_count": 0,
        "open_operations": [], "figures": None, **more,
    }  # fmt: skip


def whole(**more: Any) -> dict[str, Any]:
    policy = {"lag": None, "heap_retention": "5", "enabled": True, "maintenance.x": "<i>"}
    nothing: dict[str, Any] = {name: [] for name in ("partitions", "problems", "pins", "waits", "operations", "errands")}
    return line(settings={"tier_key": "id"}, policy=policy, maintenance_requested=None, lake=None, **nothing, **more)


NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FOLLOWED = {"state": "followed", "frontier": "0/16B3748", "lag_bytes": 4096, "lag_seconds": 3.0, "retained_bytes": 1}
WORKER = {
    "role": "leader", "epoch": 1, "since": NOW, "last_cycle": NOW, "failures": [], "waits": [],
    "running": [{"table": "public.odd", "job": "mirror", "since": NOW}],
    "errands": [{"number": 1, "table": "public.odd", "job": "fold", "asked_at": NOW, "state": "waiting", "began_at": None, "ended_at": None,
                 "message": "", "hint": None}],
}  # fmt: skip
WORKERS = {
    "leader": {"holder": EVIL, "host": "h", "pid": 1, "epoch": 3, "since": NOW, "seen_at": NOW, "leads": False, "is_this": False},
    "standbys": [{"holder": EVIL, "since": None, "is_this": True}],
}


def rendered(template: str, **given: Any) -> str:
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    made = Rendering(Guard(Access.GUARDED, "x")).page(request, template, Sessions().open(), 200, None, worker=views.worker(WORKER), **given)
    return bytes(made.body).decode()


@pytest.mark.parametrize("mirror", [None, FOLLOWED, FOLLOWED | {"state": "parked", "frontier": None}])
def test_a_mirrored_table_has_pages(mirror: dict[str, Any] | None) -> None:
    page = rendered("table.html", **views.table(whole(mirror=mirror), [], Samples()))
    assert ("Frontier F" in page, "WAL behind" in page, "Partitions across" in page) == (True, True, False)
    assert "Heap retention" in page
    assert ('value="&lt;i&gt;"' in page, "<i>" in page) == (True, False)
    found = {"worker": WORKER, "tables": [line(mirror=mirror)], "pins": [], "transactions": [], "problems": [], "operations": []}
    more = {"slots": [{"slot_name": "modak", "active": False, "retained_bytes": 2048}], "workers": WORKERS, "decoupled": []}
    page = rendered("overview.html", **views.overview(found | more, Samples()))
    assert (page.count("&lt;script&gt;alert(1)"), "<script>alert(1)" in page, "Nobody leads" in page) == (2, False, True)
    assert ("WAL kept by slots" in page, "nobody reads it" in page, "mirror of public.odd" in page) == (True, True, True)


def test_pages_show_a_lake_that_fails_and_a_table_without_anything() -> None:
    failing = whole(mode="tiered") | {"lake": {"error": "no <b>bucket</b>", "hint": "look"}, "waits": ["session 5"], "enabled": False}
    page = rendered("table.html", **views.table(failing, [], Samples()))
    assert ("no &lt;b&gt;bucket" in page, "There is no partition yet." in page, "No figures yet." in page) == (True, True, True)
    empty = {"worker": WORKER, "tables": [], "pins": [], "transactions": [], "slots": [], "problems": [], "operations": []}
    page = rendered("overview.html", **views.overview(empty | {"workers": {"leader": None, "standbys": []}, "decoupled": []}, Samples()))
    assert ("No table is registered yet." in page, "No worker has led yet." in page) == (True, True)


def test_a_query_is_marked_where_it_is_wrong() -> None:
    failed = query.QueryFailed("no such column", position="12")
    found = views.query("select\n  1, nothing\nfrom t", failed=failed)
    assert found["place"] == ("  1, nothing", "    ^", "12")
    assert views.query("select", failed=query.QueryFailed("x", position="99"))["place"] is None
    assert "    ^" in rendered("sql.html", **found)
