"""The command line as scripts and people meet it: exit codes, streams, --json, settings, and a quick --help."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands import Modak
from tests.support import EVENTS, create_events, photograph, rows, run_cli, value

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection

REGISTER = ("register", "public.events", "--tier-key", "event_time", "--primary-key", "id")


def test_the_whole_way_in_text(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    assert "this table can be registered" in modak("plan", *REGISTER[1:]).out
    registered = modak(*REGISTER, "--lag", "100", "--width", "10")
    assert "public.events is registered: heap public.events_hot" in registered.out
    assert "Registering public.events: done" in registered.err
    assert "3 hot" in modak("status").out
    assert re.search(r"events_p1\s+100\s+200\s+hot", modak("status", "public.events").out)
    assert re.search(r"lag\s+70", modak("policy", "public.events", "lag=70").out)
    assert "settings are in place" in modak(*REGISTER, "--lag", "80").out
    assert tables.get(connection, EVENTS).tier_lag == "80"
    assert "ordinary table again" in modak("unregister", "public.events", "--drop-lake").out
    assert "is not registered" in modak("unregister", "public.events").out


def test_json_before_or_after_the_command_has_one_shape(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    plan = modak("--json", "plan", *REGISTER[1:])
    assert plan.json == modak("plan", *REGISTER[1:], "--json").json
    assert plan.err == ""
    registered = modak(*REGISTER, "--json")
    assert set(registered.json) >= {"table", "tier_key", "primary_key", "mode", "surface", "heap", "view", "lake_table", "policy"}
    assert registered.err == ""
    assert modak(*REGISTER, "--json").json == registered.json
    listed = modak("status", "--json").json
    assert [(line["table_name"], line["cutline_t"], line["partition_states"]) for line in listed] == [("events", 0, {"hot": 3})]
    one = modak("--json", "status", "public.events").json
    assert {"settings", "policy", "partitions", "cutline_s"} <= set(one)
    assert [part["name"] for part in one["partitions"]] == ["events_p0", "events_p1", "events_p2"]
    assert modak("policy", "public.events", "premake=2", "--json").json["premake"] == 2
    assert modak("profile", "list", "--json").json[0]["tables"] == 1
    assert modak("--json", "profile", "set", "far", "--warehouse", "s3://far").json["warehouse"] == "s3://far"
    assert modak("profile", "drop", "far", "--json").json == {"dropped": "far"}
    gone = modak("unregister", "public.events", "--json").json
    assert (gone["found"], gone["lake_dropped"], gone["rows_left_in_lake"]) == (True, False, 0)
    assert modak("unregister", "public.events", "--json").json["found"] is False


def test_export_and_import_are_files(connection: Connection, modak: Modak, tmp_path: Path) -> None:
    create_events(connection)
    modak(*REGISTER, "--lag", "7")
    (tmp_path / "tables.json").write_text(modak("export").out)
    modak("unregister", "public.events", "--drop-lake")
    assert "registered" in modak("import", str(tmp_path / "tables.json")).out
    assert modak("import", str(tmp_path / "tables.json"), "--json").json == [{"table": "public.events", "outcome": "policy set"}]
    assert tables.get(connection, EVENTS).tier_lag == "7"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_an_export_may_have_come_from_another_shell(connection: Connection, modak: Modak, tmp_path: Path, encoding: str) -> None:
    create_events(connection)
    modak(*REGISTER, "--lag", "100")
    (tmp_path / "tables.json").write_text(modak("export").out, encoding=encoding)
    assert "policy set" in modak("import", str(tmp_path / "tables.json")).out
    (tmp_path / "tables.json").write_bytes(b"\xff\xfe\x00")
    assert "no export of Modak" in modak("import", str(tmp_path / "tables.json"), code=2).err


def test_a_disabled_table_says_so(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    modak(*REGISTER)
    modak("policy", "public.events", "enabled=no")
    assert modak("status", "--json").json[0]["enabled"] is False
    modak("policy", "public.events", "enabled=")
    assert modak("status", "--json").json[0]["enabled"] is True
    assert value(connection, "select count(*) from public.events") == 5


FAILURES: list[tuple[tuple[str, ...], int, str]] = [
    ((*REGISTER[:3], "nothing"), 1, "tier key column 'nothing' does not exist"),
    (("register", "public.missing", "--tier-key", "k"), 1, "there is no table public.missing"),
    (("register", "events", "--tier-key", "k"), 2, "must be schema.table"),
    (("register", "public.events"), 2, "--tier-key"),
    (("register", "public.events", "--tier-key", "k", "--mode", "sideways"), 2, "sideways"),
    (("status", "public.missing"), 1, "is not a registered table"),
    (("policy", "public.events", "lag"), 2, "is not KEY=VALUE"),
    (("policy", "public.missing", "lag=5"), 1, "is not a registered table"),
    (("profile", "set", "x", "--config", "s3.secret-access-key=v"), 1, "looks like a secret"),
    (("profile", "drop", "default"), 1, "is the default"),
    (("nonsense",), 2, "nonsense"),
    (("status", "--nonsense"), 2, "nonsense"),
    (("import", "/no/such/file"), 2, "/no/such/file"),
    (("--dsn", "postgresql://nobody@127.0.0.1:1/x", "status"), 1, "cannot connect"),
    (("--dsn", "host = = x", "status"), 1, "DSN"),
    (("--dsn", "", "status"), 2, "it is empty"),
    (("migrate", "--dsn="), 2, "it is empty"),
    (("status", ""), 2, "must be schema.table"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), FAILURES, ids=[" ".join(case[0]) for case in FAILURES])
def test_failures_go_to_stderr_with_error_and_hint(
    connection: Connection, app: App, modak: Modak, arguments: tuple[str, ...], code: int, words: str
) -> None:
    create_events(connection)
    before = photograph(connection)
    failed = modak(*arguments, code=code)
    assert failed.out == ""
    assert re.search(r"^error: ", failed.err, re.M)
    assert re.search(r"^hint: ", failed.err, re.M) or words in ("is not KEY=VALUE", "looks like a secret")
    assert words in failed.err
    assert "Traceback" not in failed.err
    assert photograph(connection) == before
    asked = modak("--json", *arguments, code=code)
    told = json.loads(asked.err)
    assert (asked.out, set(told) >= {"error", "message", "hint", "facts"}) == ("", True)


MISUSES = [
    ((*REGISTER, "--width", "-5"), "width '-5' is not between 1"),
    ((*REGISTER, "--width", "month"), "needs a time as tier key"),
    ((*REGISTER, "--lag", "abc"), "--lag: "),
    ((*REGISTER, "--lag", "-1"), "--lag: "),
    ((*REGISTER, "--premake", "-1"), "--premake -1"),
    ((*REGISTER, "--lake-table", "Not A Name"), "must be namespace.table"),
    ((*REGISTER, "--keep-heap", "--lake-retention", "5", "--width", "1"), "contradict each other"),
    (("policy", "public.known", "bogus=1"), "unknown policy key 'bogus'"),
    (("policy", "public.known", "lag=abc"), "lag: "),
    (("policy", "public.known", "premake=-1", "enabled=perhaps"), "neither true nor false"),
    (("policy", "public.known", "maintenance.bogus=1"), "bogus"),
    (("register", "public.known", "--tier-key", "event_time", "--width", "-5"), "width '-5' is not between 1"),
    (("register", "public.known", "--tier-key", "event_time", "--lag", "abc"), "lag: "),
    (("tier", "public.known", "--upto", "abc"), "abc"),
    (("untier", "public.known", "--from", "abc"), "abc"),
]


def test_a_wrong_argument_is_a_usage_error_and_changes_nothing(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    connection.execute("""
        create table public.known (id bigint, event_time bigint, primary key (id, event_time)) partition by range (event_time);
        create table public.known_p0 partition of public.known for values from (0) to (100)
    """)
    modak("register", "public.known", "--tier-key", "event_time", "--lag", "5")
    before = photograph(connection)
    for arguments, words in MISUSES:
        assert words in modak(*arguments, code=2).err, arguments
    assert photograph(connection) == before


def test_what_the_table_or_its_settings_stand_against_is_a_failure(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    # Together with an argument that is wrong by itself, too.
    modak("register", "public.events", "--tier-key", "nothing", "--keep-heap", "--lake-retention", "5", code=1)
    modak(*REGISTER, "--lag", "5")
    modak("policy", "public.events", "heap_retention=5", code=1)
    modak("policy", "public.events", "heap_retention=5", "bogus=1", code=1)
    modak(*REGISTER, "--width", "10", code=1)


def test_refusals_list_every_problem(connection: Connection, modak: Modak) -> None:
    connection.execute("create table public.events (id bigint, event_time text, m money)")
    failed = modak("register", "public.events", "--tier-key", "event_time", "--width", "x", code=1)
    assert failed.err.count("\n  - ") == 3
    told = json.loads(modak("--json", "register", "public.events", "--tier-key", "event_time", code=1).err)
    assert {problem["code"] for problem in told["problems"]} == {"tier_key_type", "no_primary_key", "type"}


def test_an_unknown_setting_is_refused_with_the_nearest_name(modak: Modak, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAK_WAREHOSE", "/tmp")
    failed = modak("status", code=2)
    assert "unknown setting MODAK_WAREHOSE" in failed.err
    assert "did you mean MODAK_WAREHOUSE?" in failed.err


def test_a_variable_that_is_no_setting_is_ignored_and_told_once(modak: Modak, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAK_BIN", "/usr/bin/modak")
    assert modak("status").err.splitlines().count("warning: no setting of Modak, and ignored: MODAK_BIN") == 1
    assert (modak("status", "--json").err, modak("status", "--quiet").err) == ("", "")


def test_a_database_without_a_catalog(new_database: Callable[..., str], modak: Modak) -> None:
    empty = new_database()
    failed = modak("--dsn", empty, "status", code=1)
    assert "no Modak catalog" in failed.err
    assert "modak migrate" in failed.err
    assert "0001_catalog" in modak("--dsn", empty, "migrate").out
    assert "nothing to do" in modak("--dsn", empty, "migrate").out
    assert modak("--dsn", empty, "status", "--json").json == []
    assert modak("--dsn", empty, "migrate", "--json").json["applied"] == []


def test_no_database_at_all(modak: Modak, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MODAK_DSN")
    monkeypatch.setenv("MODAK_DATA", str(tmp_path / "nothing here"))
    assert "no database was given" in modak("status", code=2).err
    assert not (tmp_path / "nothing here").exists()


def test_a_role_without_rights_is_told_so(connection: Connection, app: App, modak: Modak, dsn: str) -> None:
    create_events(connection)
    connection.execute("create role weak login password 'weak'")
    try:
        weak = re.sub(r"//[^@]*@", "//weak:weak@", dsn)
        failed = modak("--dsn", weak, *REGISTER, code=1)
        assert "may not read the catalog" in failed.err
        assert "hint: " in failed.err
        assert "weak:weak" not in failed.err
    finally:
        connection.execute("drop role weak")


def test_printed_sql_is_all_that_stdout_gets(modak: Modak) -> None:
    printed = modak("migrate", "--print")
    assert printed.out.startswith("-- Modak")
    assert printed.out.rstrip().endswith("commit;")
    assert printed.err == ""


def test_quiet_says_results_only(connection: Connection, modak: Modak) -> None:
    create_events(connection)
    assert modak(*REGISTER, "--quiet").err == ""


@pytest.mark.parametrize("arguments", [(), ("profile",), ("postgres",)])
def test_a_group_alone_shows_its_commands(modak: Modak, arguments: tuple[str, ...]) -> None:
    shown = modak(*arguments, code=2)
    assert "Commands:" in shown.out + shown.err
    assert "error: Usage" not in shown.err


@pytest.mark.parametrize("group", ["profile", "postgres"])
def test_a_group_alone_is_an_error_in_json_too(modak: Modak, group: str) -> None:
    alone = modak("--json", group, code=2)
    assert (alone.out, json.loads(alone.err)["error"]) == ("", "usage")


@pytest.mark.parametrize("arguments", [("status",), ("export",), ("migrate", "--print")])
def test_a_result_that_cannot_be_written_is_an_error(dsn: str, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", "modak.cli.main", "--dsn", dsn, *arguments]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("MODAK_")} | {"MODAK_DATA": str(tmp_path)}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, env=environ, timeout=60, check=False)
    assert (done.returncode, "No space left" in done.stderr, "Traceback" in done.stderr) == (1, True, False)

    reading, writing = os.pipe()
    os.close(reading)
    # Whoever closes a pipe wants no more: `modak migrate --print | head` is no failure that anybody has to read about.
    done = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, text=True, env=environ, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, "Traceback" in done.stderr, "refused" in done.stderr) == (1, False, False)

    closed = ["sh", "-c", '"$@" >&-', "sh", *program]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, env=environ, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_as_a_process_of_its_own(connection: Connection, app: App, dsn: str, tmp_path: Path) -> None:
    create_events(connection)
    done = run_cli(dsn, *REGISTER, "--json", data=tmp_path / "with a space")
    assert (done.returncode, json.loads(done.stdout)["heap"]) == (0, "public.events_hot")
    location = rows(connection, "select lake_props ->> 'metadata_location' from modak.cutline")[0][0]
    assert location.startswith(f"file://{tmp_path}/with a space/")
    assert Path(location.removeprefix("file://")).exists()


HEAVY = {"pyspark", "psycopg", "rich", "pyiceberg", "duckdb", "sqlalchemy", "pyarrow"}


@pytest.mark.parametrize("arguments", [["--help"], ["register", "--help"], ["profile", "set", "--help"], ["--version"]])
def test_help_is_quick_and_imports_nothing_heavy(arguments: list[str]) -> None:
    watch = f"import sys; sys.argv = ['modak', *{arguments!r}]\nfrom modak.cli.main import main\ntry:\n main()\nexcept SystemExit: pass\n"
    watch += f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    best = min(_cpu_seconds([sys.executable, "-c", watch]) for _ in range(3))
    assert best < 0.3


def _cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("MODAK_", "COV_"))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, timeout=60)
    assert done.stderr.strip() == "[]"
    assert done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
