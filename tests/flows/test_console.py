"""Console and API over HTTP, without a browser: the door, every page, forms, queries, and what is documented."""

from __future__ import annotations

import base64
import json
import re
import ssl
import subprocess
import threading
import urllib.parse
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb
from tests.consoles import PASSWORD, READINGS, Shop, http, made
from tests.serving import Answer, RunningHttp, call, until
from tests.support import value

from modak.app import App
from modak.catalog import leadership, profiles
from modak.embedded.postgres import Cluster
from modak.errors import UsageError
from modak.web.console.query import RESULT_BYTES_MAX, Queries, QueryFailed
from modak.web.headers import POLICY
from modak.web.openapi import DOCUMENT
from modak.worker.lease import leading
from modak.worker.metrics import HELP

pytestmark = [pytest.mark.inline]
__all__ = ["http", "made"]
BASIC = {"Authorization": "Basic " + base64.b64encode(f"anybody:{PASSWORD}".encode()).decode()}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PAGES = ["/", "/tables/public.orders", "/operations", "/sql"]
LOOKS = ["/api/v1/worker", "/api/v1/tables", "/api/v1/tables/public.orders", "/api/v1/operations", "/api/v1/samples/public.orders"]


class Person:
    """Somebody with cookies, as a browser has them."""

    def __init__(self, http: RunningHttp, password: str = PASSWORD) -> None:
        self.port, self.cookie = http.port, ""
        self.entered = self.send("/login", {"password": password, "next": "/"})
        found = self.entered.headers.get("set-cookie", "")
        self.attributes = found.partition(";")[2]
        self.cookie = found.partition(";")[0]

    def get(self, path: str) -> Answer:
        return call(self.port, "GET", path, headers={"Cookie": self.cookie})

    def send(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        return call(self.port, "POST", path, urllib.parse.urlencode(fields), {"Cookie": self.cookie, **FORM, **headers})

    def token(self, path: str = "/") -> str:
        found = re.search(r'name="form_token" value="([^"]+)"', self.get(path).text.decode())
        assert found is not None
        return found[1]


@pytest.fixture(scope="module")
def person(http: RunningHttp) -> Person:
    found = Person(http)
    assert (found.entered.status, found.entered.headers["location"]) == (303, "/")
    return found


# Who leads


def test_who_leads_and_who_stands_by(made: Shop, person: Person) -> None:
    def told() -> tuple[dict[str, Any], str]:
        return call(person.port, "GET", "/api/v1/worker", headers=BASIC).json["workers"], person.get("/").text.decode()

    found, page = told()
    assert found == {"leader": None, "standbys": []}
    assert "No worker has led yet." in page
    stop, mine = threading.Event(), leadership.holder_name()
    with made.app.connection(application="modak lease elsewhere/7") as other:
        with leading(partial(made.app.connection, application=leadership.lease_name()), 15.0, stop) as lease:
            assert lease is not None
            found, page = told()
            assert [found["leader"][name] for name in ("holder", "leads", "is_this", "epoch")] == [mine, True, True, lease.epoch]
            assert [(one["holder"], one["is_this"]) for one in found["standbys"]] == [("elsewhere/7", False)]
            for text in (mine, "leads", "this one", "elsewhere/7", "stands by"):
                assert text in page, text
        assert other.execute("select 1 as n").fetchone() == {"n": 1}
        until(lambda: not told()[0]["leader"]["leads"])
        found, page = told()
        assert (found["leader"]["holder"], [one["holder"] for one in found["standbys"]]) == (mine, ["elsewhere/7"])
        assert "Nobody leads" in page
    with made.connection() as connection:
        connection.execute("delete from modak.leader")


# The door


def test_nobody_comes_in_without_the_password(http: RunningHttp) -> None:
    for path in PAGES:
        answer = call(http.port, "GET", path)
        assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/login"), path
        assert b"orders" not in answer.text
    for path in LOOKS:
        assert (call(http.port, "GET", path).status, call(http.port, "GET", path).error["code"]) == (401, "unauthorized")
        assert call(http.port, "GET", path, headers={"Cookie": "modak_session=x"}).status == 401
    wrong = {"Authorization": "Basic " + base64.b64encode(b"x:wrong").decode()}
    assert call(http.port, "GET", LOOKS[0], headers=wrong).headers["www-authenticate"].startswith("Basic")
    assert call(http.port, "POST", "/api/v1/sql", b"{}", JSON).status == 401


def test_the_cookie_is_of_no_use_elsewhere(person: Person) -> None:
    for word in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert word in person.attributes
    assert "Secure" not in person.attributes, "over plain HTTP it would never come back"


def test_a_wrong_password_has_to_wait(made: Shop) -> None:
    with made.serving() as http:
        answers = [Person(http, "wrong").entered for _ in range(6)]
        assert [answer.status for answer in answers] == [401] * 5 + [429]
        assert "This is not the password." in answers[0].text.decode()
        assert int(answers[5].headers["retry-after"]) > 0
        assert Person(http).entered.status == 429, "the right one as well"
        elsewhere = urllib.parse.urlencode({"password": PASSWORD})
        assert call(http.port, "POST", "/login", elsewhere, FORM | {"X-Forwarded-For": "10.1.2.3"}).status == 429
        assert call(http.port, "GET", LOOKS[0], headers=BASIC).status == 429


def test_logging_in_goes_back_to_our_pages_only(http: RunningHttp) -> None:
    asked = call(http.port, "GET", "/tables/public.orders?said=fold").headers["location"]
    assert urllib.parse.unquote(asked) == "/login?next=/tables/public.orders?said=fold"
    person = Person(http)
    for after, expected in (("/operations", "/operations"), ("//evil.example", "/"), ("https://evil.example", "/")):
        assert person.send("/login", {"password": PASSWORD, "next": after}).headers["location"] == expected


def test_logging_out_ends_the_session(http: RunningHttp) -> None:
    person = Person(http)
    assert person.send("/logout", {"form_token": "wrong"}).status == 403
    assert person.send("/logout", {"form_token": person.token()}).status == 303
    assert person.get("/").status == 303


def test_forms_of_others_are_refused(made: Shop, person: Person) -> None:
    token = person.token()
    fields = {"what": "maintain"}
    for more in ({}, {"form_token": ""}, {"form_token": token + "x"}):
        assert person.send("/tables/public.orders", fields | more).status == 403
    assert person.send("/tables/public.orders", fields | {"form_token": token}, Origin="https://evil.example").status == 403
    assert person.send("/tables/public.orders", fields | {"form_token": token}, **{"Content-Type": "text/plain"}).status == 415
    assert person.send("/tables/public.orders", {"form_token": token, "x": "y" * 200_000}).status == 413
    with made.connection() as connection:
        assert value(connection, "select count(*) from modak.maintenance_requests") == 0


@pytest.mark.parametrize("path", [*PAGES, "/login", "/healthz", "/metrics", "/api/v1/openapi.json", "/nowhere", "/static/console.css"])
def test_every_answer_is_guarded(person: Person, path: str) -> None:
    headers = person.get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cache-control"] == ("no-cache" if path.startswith("/static/") else "no-store")


# Without a password


def test_without_a_password_it_only_shows(made: Shop) -> None:
    with made.serving(password=None) as http:
        for path in PAGES:
            page = call(http.port, "GET", path)
            assert page.status == 200
            assert "MODAK_CONSOLE_PASSWORD" in page.text.decode()
        assert all(call(http.port, "GET", path).status == 200 for path in LOOKS)
        for path in ("/tables/public.orders", "/sql", "/logout"):
            answer = call(http.port, "POST", path, "what=fold", FORM)
            assert (answer.status, b"only shows" in answer.text) == (403, True), path
        assert call(http.port, "POST", "/api/v1/sql", b'{"sql": "select 1"}', JSON).error["code"] == "read_only"
        assert call(http.port, "GET", "/login").headers["location"] == "/"
        # A page of somebody else whose name leads to this machine.
        for path in (*PAGES, *LOOKS):
            assert call(http.port, "GET", path, headers={"Host": "evil.example"}).status == 403


def test_without_a_password_others_get_nothing(made: Shop) -> None:
    with made.serving(password=None, host="0.0.0.0") as http:
        for path in (*PAGES, "/login", *LOOKS):
            answer = call(http.port, "GET", path)
            assert (answer.status, b"MODAK_CONSOLE_PASSWORD" in answer.text, b"orders" in answer.text) == (403, True, False), path
        assert call(http.port, "POST", "/api/v1/sql", b'{"sql": "select 1"}', JSON).error["code"] == "console_off"
        assert call(http.port, "GET", "/healthz").status == 200
        assert call(http.port, "GET", "/metrics").status == 200


# Pages


def test_pages_show_what_there_is(person: Person) -> None:
    overview = person.get("/").text.decode()
    for text in ("public.orders", "public.readings", "1 Jun 2026", "Leader", "Who holds the horizon"):
        assert text in overview, text
    table = person.get("/tables/public.orders").text.decode()
    for text in ("orders_2026_01", "T 1 Jun 2026", "published", "3 mons", "tiering", ".parquet", "map-part state-hot"):
        assert text in table, text
    assert "tiering" in person.get("/operations?table=public.orders&kind=tiering").text.decode()
    assert "Nothing yet." in person.get("/operations?kind=untier").text.decode()


def test_what_is_not_there_is_said_well(person: Person) -> None:
    missing = person.get("/tables/public.nothing")
    assert (missing.status, "is not a registered table" in missing.text.decode()) == (404, True)
    assert person.get("/tables/nothing").status == 400
    assert person.get("/tables/" + "x" * 1000).status == 400
    assert person.get("/operations?kind=%3Cscript%3E").status == 400
    assert b"<script>" not in person.get("/operations?kind=%3Cscript%3E").text
    assert person.get("/operations?before=yesterday").status == 400
    assert person.get("/static/..%2f..%2fpages.py").status == 404
    assert call(person.port, "DELETE", "/").status == 405
    page = call(person.port, "GET", "/nowhere", headers={"Cookie": person.cookie, "Accept": "text/html"})
    assert (page.status, b"There is nothing at this address" in page.text) == (404, True)
    assert call(person.port, "GET", "/nowhere", headers={"Accept": "text/html"}).error["code"] == "not_found"


def test_odd_names_are_shown_and_not_believed(made: Shop, http: RunningHttp, person: Person) -> None:
    name = '<img src=x onerror="alert(1)">/%?#'
    with made.connection() as connection:
        connection.execute(sql.SQL("alter table public.readings_0 rename to {}").format(sql.Identifier(name)))
        connection.execute("update modak.partitions set partition_name = %s where partition_name = 'readings_0'", [name])
        connection.execute(
            "insert into modak.problems (table_id, job, code, message, hint) select table_id, %s, 'x', %s, %s from modak.tables "
            "where table_name = 'readings'",
            ["<b>tier", name, name],
        )
    try:
        for path in ("/", "/tables/public.readings"):
            text = person.get(path).text.decode()
            assert "<img src=x" not in text
            assert "<b>tier" not in text
            assert "&lt;img src=x" in text
    finally:
        with made.connection() as connection:
            connection.execute("delete from modak.problems")
            connection.execute(sql.SQL("alter table public.{} rename to readings_0").format(sql.Identifier(name)))
            connection.execute("update modak.partitions set partition_name = 'readings_0' where partition_name = %s", [name])


def test_postgres_is_away(made: Shop, cluster: Cluster, http: RunningHttp, person: Person) -> None:
    name = str(psycopg.conninfo.conninfo_to_dict(made.dsn)["dbname"])
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("alter database {} allow_connections false").format(sql.Identifier(name)))
        try:
            page = person.get("/")
            assert (page.status, "Postgres does not answer" in page.text.decode(), b"data-retry" in page.text) == (503, True, True)
            assert call(http.port, "GET", "/api/v1/tables", headers=BASIC).status == 503
            health = call(http.port, "GET", "/healthz")
            assert (health.status, health.json["postgres"], health.json["role"]) == (503, "away", "leader")
            password = str(psycopg.conninfo.conninfo_to_dict(made.dsn).get("password"))
            assert not [found for found in (page.text, health.text) if password.encode() in found]
        finally:
            admin.execute(sql.SQL("alter database {} allow_connections true").format(sql.Identifier(name)))
    assert person.get("/").status == 200


# Forms


def test_a_policy_is_changed(made: Shop, person: Person) -> None:
    path, token = "/tables/public.readings", person.token()
    answer = person.send(path, {"form_token": token, "what": "policy", "lag": "500", "was.lag": "1000", "premake": "0", "was.premake": "0"})
    assert (answer.status, answer.headers["location"]) == (303, f"{path}?said=policy")
    assert "The policy is changed." in person.get(f"{path}?said=policy").text.decode()
    with made.connection() as connection:
        assert value(connection, "select tier_lag from modak.tables where table_name = 'readings'") == "500"
        connection.execute("update modak.tables set premake = 2 where table_name = 'readings'")
        # What the form did not change stays as somebody else has it.
        person.send(path, {"form_token": token, "what": "policy", "lag": "1000", "was.lag": "500", "premake": "0", "was.premake": "0"})
        assert value(connection, "select tier_lag || ' ' || premake from modak.tables where table_name = 'readings'") == "1000 2"
        connection.execute("update modak.tables set premake = 0 where table_name = 'readings'")


def test_a_wrong_policy_says_why_and_keeps_what_was_typed(made: Shop, person: Person) -> None:
    path = "/tables/public.readings"
    fields = {"form_token": person.token(), "what": "policy", "lag": "soon <b>", "was.lag": "1000", "premake": "5000", "was.premake": "0"}
    answer = person.send(path, fields)
    text = answer.text.decode()
    assert answer.status == 400
    for part in ("was not changed", "lag:", "premake:", 'value="soon &lt;b&gt;"', 'value="5000"', 'role="alert"'):
        assert part in text, part
    with made.connection() as connection:
        assert value(connection, "select tier_lag from modak.tables where table_name = 'readings'") == "1000"
    assert person.send(path, {"form_token": person.token(), "what": "destroy"}).status == 400


def test_buttons_ask_for_jobs(made: Shop, http: RunningHttp, person: Person) -> None:
    path = "/tables/public.orders"
    assert person.send(path, {"form_token": person.token(), "what": "maintain"}).status == 303
    with made.connection() as connection:
        assert value(connection, "select requested_by from modak.maintenance_requests") == "console"
        assert "Maintenance was requested by console" in person.get(path).text.decode()
        connection.execute("delete from modak.maintenance_requests")
        assert value(connection, "select count(*) from modak.delta") > 0
        assert person.send(path, {"form_token": person.token(), "what": "fold"}).status == 303
        until(lambda: all(one.is_over for one in http.server.errands.listing()))
        assert http.server.errands.listing()[0].state == "done", http.server.errands.listing()[0].message
        assert value(connection, "select count(*) from modak.delta") == 0
    assert "corrections folded" in person.get(path).text.decode()
    assert "compaction" in person.get("/operations").text.decode()


# Queries


def asked(http: RunningHttp, text: str) -> Answer:
    return call(http.port, "POST", "/api/v1/sql", json.dumps({"sql": text}), BASIC | JSON)


def test_queries_see_both_tiers_through_the_gateway(http: RunningHttp, person: Person) -> None:
    found = asked(http, "select count(*), min(placed_at), null from public.orders").json
    assert (found["rows"], found["engine"]) == ([["900", "2026-01-01 00:00:00+00", None]], "gateway")
    assert set(found["tiers"]) >= {"hot", "cold"}
    assert any(line.startswith("gateway: ") for line in found["route"])
    page = person.send("/sql", {"form_token": person.token(), "what": "run", "sql": "select '<b>' as x, 1 as n"})
    assert (page.status, "&lt;b&gt;" in page.text.decode(), "by the gateway" in page.text.decode()) == (200, True, True)
    route = person.send("/sql", {"form_token": person.token(), "what": "explain", "sql": "select * from orders where id = 3"})
    assert "Touches" in route.text.decode()


def test_nothing_can_be_written(made: Shop, http: RunningHttp) -> None:
    attempts = {
        "with gone as (delete from public.orders returning 1) select * from gone": "permission denied",
        "select modak_delete('public.orders', '{\"id\": 1}')": "",
        "select nextval('modak.delta_version')": "permission denied",
        "select * from modak.storage_secret()": "permission denied",
        "select * from modak.gateway": "permission denied",
        "select * from modak.delta": "permission denied",
        "select pg_read_file('/etc/hostname')": "permission denied",
        "select pg_terminate_backend(pid) from pg_stat_activity where usesysid = 10": "",
        "select rolpassword from pg_authid": "permission denied",
        "select set_config('transaction_read_only', 'off', true)": "",
        "select 1; commit; delete from public.orders": "",
        "select 1; drop table modak.tables": "",
        "delete from public.orders": "only queries run here",
        "select * from nothing": "nothing",
        "select 1/0": "division by zero",
    }
    for text, why in attempts.items():
        answer = asked(http, text)
        assert (answer.status, why in answer.error["message"]) == (400, True), (text, answer.text)
    asked_for = "select umoptions from pg_user_mappings where srvname = 'modak_gateway'"
    assert asked(http, asked_for).json["rows"] == [[None]]
    with made.connection() as connection:
        assert value(connection, "select count(*) from modak.tables") == 2
        assert value(connection, "select count(*) from public.orders_hot") > 0
    # By Postgres's own means also for a login that may write.
    mighty = Queries(App(replace(made.app.settings, console_dsn=made.dsn)))
    with pytest.raises(QueryFailed, match="read-only"):
        mighty.run("with gone as (delete from public.orders returning 1) select * from gone")


def test_nobody_types_queries_as_the_worker(made: Shop) -> None:
    without = Queries(App(replace(made.app.settings, console_dsn=None, console_password=None)))
    for call_it in (without.run, without.explain):
        with pytest.raises(UsageError, match="no role to run queries as"):
            call_it("select 1")
    # With a password there is a secret that every worker knows, and each makes the same login of it.
    for _ in range(2):
        page = Queries(App(replace(made.app.settings, console_dsn=None, console_password=PASSWORD)))
        assert page.run("select current_user like 'modak_console_%', count(*) > 0 from public.orders").rows[0][0][0] == "t"
        with pytest.raises(QueryFailed, match="permission denied"):
            page.run("select pg_read_file('/etc/hostname')")


def test_queries_are_bounded(made: Shop, http: RunningHttp) -> None:
    found = asked(http, "select generate_series(1, 1000000000), repeat('x', 5000)").json
    assert (len(found["rows"]), found["truncated"], found["truncated_by"], len(found["rows"][0][1])) == (500, True, "rows", 1001)
    assert found["values_cut"] == 500
    assert asked(http, "select date '4713-01-01 BC', 'infinity'::timestamp, null").json["rows"] == [["4713-01-01 BC", "infinity", None]]
    for body, status in (("{", 400), ("[]", 400), ('{"sql": 1}', 400), ('{"sql": "select 1", "x": 1}', 400), ("x" * 200_000, 413)):
        assert call(http.port, "POST", "/api/v1/sql", body, BASIC | JSON).status == status
    assert call(http.port, "POST", "/api/v1/sql", "sql=select+1", BASIC | FORM).status == 415
    quick = Queries(App(made.app.settings), seconds_max=0.5)
    with pytest.raises(QueryFailed, match=r"ended after 0\.5 s"):
        quick.run("select pg_sleep(30)")
    with pytest.raises(QueryFailed, match=r"ended after 0\.5 s"):
        quick.run("select set_config('statement_timeout', '0', true), pg_sleep(30)")


def test_large_results_are_cut_and_say_so(made: Shop, http: RunningHttp, person: Person) -> None:
    """By their bytes as well: the leader's memory is for its work. What is cut is not kept until somebody looks at it."""
    with made.connection() as connection:
        connection.execute("create type public.large as (a text)")
    kinds = "repeat('é', 3000000), array[repeat('x', 3000000)], row(repeat('x', 3000000))::public.large, to_jsonb(repeat('x', 3000000))"
    found = Queries(App(made.app.settings)).run(f"select {kinds}, repeat('x', 1000) from generate_series(1, 3)")
    assert {len(value or "") for row in found.rows for value in row[:4]} == {1001}
    assert (found.rows[0][0], found.rows[0][4]) == ("é" * 1000 + "…", "x" * 1000)
    assert (len(found.rows), found.truncated_by, found.values_cut) == (3, None, 12)
    with made.connection() as connection:
        connection.execute("drop type public.large")
    wide = "select " + ", ".join(["repeat('x', 1000)"] * 40) + " from generate_series(1, 1000)"
    answer = asked(http, wide).json
    matches(answer, DOCUMENT["components"]["schemas"]["Rows"])
    assert (answer["truncated"], answer["truncated_by"], answer["values_cut"]) == (True, "bytes", 0)
    assert RESULT_BYTES_MAX * 0.9 < sum(len(value) + 64 for row in answer["rows"] for value in row) <= RESULT_BYTES_MAX
    page = person.send("/sql", {"form_token": person.token(), "what": "run", "sql": wide}).text.decode()
    assert "and more that are not shown since these are 8.0 MiB already" in page
    page = person.send("/sql", {"form_token": person.token(), "what": "run", "sql": "select repeat('x', 1001)"}).text.decode()
    assert ("x" * 1000 + "…" in page, "Of 1 value only the first 1,000 characters are shown" in page) == (True, True)
    empty = Queries(App(made.app.settings), bytes_max=10_000).run("select null, null, null, null from generate_series(1, 400)")
    assert (len(empty.rows), empty.truncated_by) == (39, "bytes")


def test_without_a_gateway_postgres_answers(made: Shop, http: RunningHttp) -> None:
    made.gateway.stop()
    try:
        found = asked(http, "select count(*) from public.orders where placed_at > '2026-09-01'").json
        assert (found["engine"], "gateway does not answer" in found["note"]) == ("postgres", True)
        assert int(found["rows"][0][0]) > 0
        cold = asked(http, "select count(*) from public.orders")
        assert cold.status == 400
    finally:
        made.gateway.start()


# The API


def matches(found: Any, schema: dict[str, Any], path: str = "") -> None:
    """Fails with the place where a value is not what the document says."""
    if "$ref" in schema:
        return matches(found, DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], path)
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if (one.get("type") == "null") == (found is None)]
        assert kinds, path
        return matches(found, kinds[0], path)
    if "enum" in schema:
        assert found in schema["enum"], (path, found)
        return None
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "null": type(None), "number": (int, float)}
    named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(isinstance(found, kinds[name]) and (name == "boolean" or not isinstance(found, bool)) for name in named), (path, found)  # type: ignore[arg-type]
    if isinstance(found, dict) and "properties" in schema:
        assert set(found) == set(schema["required"]), (path, set(found) ^ set(schema["required"]))
        for name, one in found.items():
            matches(one, schema["properties"][name], f"{path}.{name}")
    elif isinstance(found, dict) and isinstance(schema["additionalProperties"], dict):
        for name, one in found.items():
            matches(one, schema["additionalProperties"], f"{path}.{name}")
    elif isinstance(found, list):
        for number, one in enumerate(found):
            matches(one, schema["items"], f"{path}[{number}]")
    return None


DOCUMENTED = [
    ("/api/v1/worker", "/api/v1/worker"),
    ("/api/v1/tables", "/api/v1/tables"),
    ("/api/v1/tables/{table}", "/api/v1/tables/public.orders"),
    ("/api/v1/tables/{table}", "/api/v1/tables/public.readings"),
    ("/api/v1/operations", "/api/v1/operations?limit=5&kind=tiering&table=public.orders"),
    ("/api/v1/samples/{table}", "/api/v1/samples/public.orders"),
    ("/healthz", "/healthz"),
]


@pytest.mark.parametrize(("address", "path"), DOCUMENTED)
def test_answers_are_as_documented(http: RunningHttp, address: str, path: str) -> None:
    answer = call(http.port, "GET", path, headers=BASIC)
    assert answer.status == 200, answer.text
    matches(answer.json, DOCUMENT["paths"][address]["get"]["responses"]["200"]["content"]["application/json"]["schema"])


def test_decoupled_tables_are_listed(made: Shop, http: RunningHttp) -> None:
    """With what the lake says, or that it says nothing."""
    with made.connection() as connection:
        for number, name in enumerate(("in_the_lake", "lost")):
            connection.execute(
                f"create foreign table public.{name} (id bigint options (column_name 'a1')) server modak_gateway "  # type: ignore[arg-type]
                f"options (schema_name 'iceberg', table_name '{number}')"
            )
            connection.execute(
                "insert into modak.decoupled (table_id, schema_name, table_name, lake_table_ref, storage_profile, columns, partition_by) "
                "values (%s, 'public', %s, %s, 'default', %s, '{\"bucket(4, id)\"}')",
                [number, name, f"public.{name}", Jsonb([{"name": "id", "type": "bigint", "base": "int8", "modifier": -1, "field_id": 1}])],
            )
        catalog = made.app.lake(profiles.get(connection, None)).catalog
    catalog.create_namespace_if_not_exists("public")
    catalog.create_table("public.in_the_lake", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1, 2, 3]}))
    try:
        answer = call(http.port, "GET", "/api/v1/tables", headers=BASIC)
        matches(answer.json, DOCUMENT["components"]["schemas"]["Tables"])
        there, lost = answer.json["decoupled"]
        assert (there["table"], there["rows"], there["files"], there["partition_by"]) == ("public.in_the_lake", 3, 1, ["bucket(4, id)"])
        assert (lost["table"], lost["rows"]) == ("public.lost", None)
        assert "public.lost" in lost["error"]
        page = Person(http).get("/").text.decode()
        assert "public.in_the_lake" in page
        assert "no answer" in page
    finally:
        with made.connection() as connection:
            connection.execute("drop foreign table public.in_the_lake, public.lost; delete from modak.decoupled")
        catalog.purge_table("public.in_the_lake")


def test_every_documented_look_is_tested() -> None:
    looks = {path for path, methods in DOCUMENT["paths"].items() if "get" in methods} - {"/metrics", "/api/load/{table}/{label}"}
    assert looks == {address for address, _ in DOCUMENTED}


def test_a_query_answers_as_documented(http: RunningHttp) -> None:
    matches(asked(http, "select 1 as n").json, DOCUMENT["components"]["schemas"]["Rows"])
    operations = call(http.port, "GET", "/api/v1/operations?limit=1", headers=BASIC).json["operations"]
    older = urllib.parse.quote(operations[0]["started_at"])
    for wrong in ("limit=0", "limit=9999", "limit=%C2%B2", "before=2026", "before=2026-01-01T00:00:00", "table=x", "kind=x"):
        assert call(http.port, "GET", f"/api/v1/operations?{wrong}", headers=BASIC).status == 400, wrong
    assert call(http.port, "GET", "/api/v1/operations?table=public.no", headers=BASIC).status == 404
    found = call(http.port, "GET", f"/api/v1/operations?before={older}", headers=BASIC).json["operations"]
    assert operations[0]["op_id"] not in [one["op_id"] for one in found]


# Health and metrics


def test_health_knows_stuck_operations(made: Shop, http: RunningHttp) -> None:
    with made.connection() as connection:
        connection.execute("alter table modak.op_log disable trigger all")
        connection.execute(
            "insert into modak.op_log (op_id, table_id, op_kind, started_at, updated_at) "
            "select 'stuck', table_id, 'tiering', now() - interval '1 hour', now() - interval '1 hour' "
            "from modak.tables where table_name = 'readings'"
        )
        try:
            found = call(http.port, "GET", "/healthz")
            assert (found.status, found.json["status"]) == (503, "failing")
            assert found.json["stuck"][0]["table"] == "public.readings"
            assert "tiering of public.readings has been silent" in found.json["reasons"][0]
            matches(found.json, DOCUMENT["components"]["schemas"]["Health"])
            page = call(http.port, "GET", "/metrics").text.decode()
            assert 'modak_operations_open{kind="tiering",phase="flushing",table="public.readings"} 1.0' in page
            # One that is tried again and again, or of a table that is meant to rest, is no fault of the worker's.
            connection.execute(
                "insert into modak.problems (table_id, job, code, message) "
                "select table_id, 'resume', 'lake', 'the lake is away' from modak.tables where table_name = 'readings'"
            )
            found = call(http.port, "GET", "/healthz")
            assert (found.status, found.json["stuck"], found.json["problems"] >= 1) == (200, [], True)
            # Once nobody says so any more, it is stuck all the same; that it waits for others is another matter.
            connection.execute("update modak.problems set last_seen = now() - interval '1 hour' where job = 'resume'")
            assert call(http.port, "GET", "/healthz").status == 503
            connection.execute("update modak.problems set next_attempt = now() + interval '1 minute' where job = 'resume'")
            assert call(http.port, "GET", "/healthz").status == 200
            connection.execute("update modak.problems set next_attempt = null, job = 'backlog', last_seen = now() where job = 'resume'")
            assert call(http.port, "GET", "/healthz").status == 503
            connection.execute("update modak.tables set enabled = false where table_name = 'readings'")
            assert call(http.port, "GET", "/healthz").status == 200
        finally:
            connection.execute("update modak.tables set enabled = true where table_name = 'readings'")
            connection.execute("delete from modak.problems where code = 'lake'")
            connection.execute("delete from modak.op_log where op_id = 'stuck'")
            connection.execute("alter table modak.op_log enable trigger all")
    assert call(http.port, "GET", "/healthz").status == 200


def test_neither_health_nor_metrics_count_what_waits(made: Shop, http: RunningHttp) -> None:
    """Nobody can look at a correction while this is locked; to count many takes as long."""
    with made.connection() as connection, connection.transaction():
        connection.execute("lock table modak.delta in access exclusive mode")
        found = call(http.port, "GET", "/healthz")
        assert (found.status, found.json["postgres"], found.json["tables"]) == (200, "up", 2)
        assert found.json["lag"]["delta_rows"] >= 0
        page = call(http.port, "GET", "/metrics").text.decode()
        assert "modak_catalog_up 1.0" in page
        assert 'modak_delta_rows{table="public.orders"}' in page


def test_a_catalog_that_is_locked_is_slow_and_not_away(made: Shop, http: RunningHttp) -> None:
    with made.connection() as connection, connection.transaction():
        connection.execute("lock table modak.tables in access exclusive mode")
        found = call(http.port, "GET", "/healthz")
        assert (found.status, found.json["postgres"], found.json["reasons"], found.json["tables"]) == (200, "slow", [], None)
        matches(found.json, DOCUMENT["components"]["schemas"]["Health"])


def test_metrics_tell_how_it_goes(made: Shop, http: RunningHttp) -> None:
    page = call(http.port, "GET", "/metrics").text.decode()
    wanted = [
        "modak_worker_leader 1.0",
        "modak_catalog_up 1.0",
        'modak_delta_rows{table="public.orders"}',
        'modak_hot_bytes{table="public.orders"}',
        'modak_cold_bytes{table="public.orders"}',
        'modak_hot_period{table="public.orders",unit="seconds"}',
        'modak_partitions_due{table="public.readings"} 2.0',
        'modak_partitions{state="hot",table="public.orders"}',
        'modak_job_total{job="tiering",result="done",table="public.orders"} 1.0',
    ]
    for name in wanted:
        assert name in page, name
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
    assert families <= set(HELP)


def test_the_worker_sees_a_table_move(made: Shop, http: RunningHttp, person: Person) -> None:
    """Last: it changes what the others look at."""
    assert made.tier(READINGS).rows == 2000
    page = person.get("/tables/public.readings").text.decode()
    assert "T 2,000" in page
    samples = http.server.sampler.samples
    until(lambda: [cold for _, cold in samples.series("public.readings", "cold_rows")][-1:] == [2000.0])


# TLS


def test_over_tls_the_cookie_is_secure(made: Shop, tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    with made.serving(http_cert=tmp_path / "cert.pem", http_key=tmp_path / "key.pem") as http:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        address = f"https://127.0.0.1:{http.port}"
        with urllib.request.urlopen(f"{address}/healthz", context=trusting) as answer:
            assert answer.status == 200

        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trusting), Stay)
        fields = urllib.parse.urlencode({"password": PASSWORD}).encode()
        with pytest.raises(urllib.error.HTTPError) as moved:
            opener.open(f"{address}/login", fields)
        assert "Secure" in moved.value.headers["set-cookie"]
        moved.value.close()
