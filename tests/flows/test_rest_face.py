"""The embedded catalog as a REST catalog: DuckDB, PyIceberg and Spark attach to it, and write; Modak's own tables stay whole."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.update import SetLocationUpdate
from tests import events
from tests.attaching import TOKEN, attached
from tests.events import EVENTS, put_under_modak
from tests.serving import RunningHttp

from modak.app import App
from modak.catalog import tables
from modak.connection import Connection
from modak.core.profile import Profile
from modak.errors import Refused
from modak.jobs.foreign import ForeignSnapshot
from modak.jobs.spark import session

pytestmark = pytest.mark.inline

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def address(app: App) -> Iterator[str]:
    running = RunningHttp(App(replace(app.settings, rest_token=TOKEN)))
    yield f"http://127.0.0.1:{running.server.port}/iceberg"
    running.stop()


@pytest.fixture
def catalog(address: str) -> Catalog:
    return load_catalog("face", type="rest", uri=address, token=TOKEN)


def ask(address: str, path: str, body: Any = None, *, token: str = TOKEN, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(address + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_engines_see_and_write_the_same_tables(app: App, address: str, catalog: Catalog) -> None:
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.a", SCHEMA)
    table.append(pa.table({"id": [1, 2], "v": ["x", "y"]}, schema=SCHEMA))
    with attached(address) as database:
        database.execute("INSERT INTO lake.ns.a VALUES (3, 'z')")
        database.execute("UPDATE lake.ns.a SET v = 'changed' WHERE id = 1")
        database.execute("DELETE FROM lake.ns.a WHERE id = 2")
        # Two tables in one transaction: both or none.
        database.execute("BEGIN; CREATE TABLE lake.ns.b AS SELECT range AS n FROM range(10); INSERT INTO lake.ns.a VALUES (4, 'w'); COMMIT")
        database.execute("BEGIN; INSERT INTO lake.ns.a VALUES (5, 'w'); ROLLBACK")
        expected = [(1, "changed"), (3, "z"), (4, "w")]
        assert database.execute("SELECT * FROM lake.ns.a ORDER BY id").fetchall() == expected
        assert database.execute("SELECT sum(n) FROM lake.ns.b").fetchall() == [(45,)]
        database.execute("DROP TABLE lake.ns.b")
    found = catalog.load_table("ns.a").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["v"]) for row in found) == expected
    assert catalog.list_tables("ns") == [("ns", "a")]


@pytest.mark.spark
@pytest.mark.distributed
def test_spark_attaches(app: App, address: str, catalog: Catalog) -> None:
    spark = session("local[2]", [], app.machine())
    for name, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": address, ".token": TOKEN}.items():
        spark.conf.set(f"spark.sql.catalog.face{name}", value)
    spark.sql("CREATE NAMESPACE face.of_spark")
    spark.sql("CREATE TABLE face.of_spark.t (id bigint, v string) USING iceberg")
    spark.sql("INSERT INTO face.of_spark.t VALUES (1, 'a'), (2, 'b')")
    spark.sql("DELETE FROM face.of_spark.t WHERE id = 1")
    assert [tuple(row) for row in spark.sql("SELECT * FROM face.of_spark.t").collect()] == [(2, "b")]
    assert catalog.load_table("of_spark.t").scan().to_arrow().to_pylist() == [{"id": 2, "v": "b"}]
    spark.sql("DROP TABLE face.of_spark.t PURGE")
    assert not catalog.table_exists("of_spark.t")


def test_a_commit_that_comes_second_is_refused(catalog: Catalog) -> None:
    catalog.create_namespace("ns")
    first = catalog.create_table("ns.a", SCHEMA)
    second = catalog.load_table("ns.a")
    with first.update_schema() as update:
        update.add_column("n", types.LongType())
    with pytest.raises(CommitFailedException), second.update_schema() as update:
        update.add_column("m", types.LongType())
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("ns.a", SCHEMA)
    with pytest.raises(NoSuchTableError):
        catalog.load_table("ns.b")
    assert [field.name for field in catalog.load_table("ns.a").schema().fields] == ["id", "v", "n"]


def test_tables_of_modak_take_rows_and_nothing_else(app: App, connection: Connection, address: str, catalog: Catalog) -> None:
    events.create(connection)
    put_under_modak(app, connection)
    events.tier(app)
    ref = tables.get(connection, EVENTS).lake_table_ref
    for forbidden in (
        lambda: catalog.drop_table(ref),
        lambda: catalog.rename_table(ref, "public.other"),
        lambda: catalog.load_table(ref).update_schema().add_column("n", types.LongType()).commit(),
        lambda: catalog.load_table(ref).transaction().set_properties(x="y").commit_transaction(),
    ):
        with pytest.raises(ForbiddenError, match="table of Modak's"):
            forbidden()
    with attached(address) as database:
        database.execute(f"DELETE FROM lake.{ref} WHERE id = 1")
    # As a commit of any stranger: seen, and neither built upon nor lost without being told.
    with pytest.raises(ForeignSnapshot):
        events.tier(app)
    events.tier(app, foreign_snapshots="rollback")


def test_the_wrong_token_and_the_wrong_place(app: App, address: str, catalog: Catalog) -> None:
    with pytest.raises(UnauthorizedError):
        load_catalog("face", type="rest", uri=address, token="wrong")
    assert ask(address, "/v1/default/namespaces", token="wrong")[0] == 401
    assert ask(address, "/v1/config?warehouse=nowhere")[0] == 404
    catalog.create_namespace("ns")
    table = {"name": "t", "schema": {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}}
    warehouse = f"file://{app.settings.data.absolute()}/warehouse"
    for bad in (
        {"location": "file:///etc/modak"},
        {"location": f"{warehouse}/../elsewhere"},
        {"properties": {"write.metadata.path": "file:///etc"}},
        {"properties": {"write.py-location-provider.impl": "os.path"}},
        {"schema": "none"},
    ):
        status, answer = ask(address, "/v1/default/namespaces/ns/tables", {**table, **bad})
        assert (status, answer["error"]["type"]) == (400, "BadRequestException"), bad
    assert ask(address, "/v1/default/namespaces/ns/tables", table)[0] == 200


def test_a_table_has_a_folder_of_its_own(app: App, address: str, catalog: Catalog) -> None:
    """Whoever drops it with its files takes nobody else's along."""
    catalog.create_namespace("ns")
    kept = catalog.create_table("ns.kept", SCHEMA)
    kept.append(pa.table({"id": [1], "v": ["x"]}, schema=SCHEMA))
    warehouse = f"file://{app.settings.data.absolute()}/warehouse"
    folder = kept.location()
    for bad in (
        warehouse, f"{warehouse}/", f"{warehouse}/ns", f"{warehouse}/other", f"{warehouse}/ns/", f"{warehouse}//ns", f"{warehouse}/ns/.",
        f"{warehouse}/ns?/t", f"{warehouse}/ns#/t", f"{warehouse}/ns/a/../..", folder, f"{folder}/", f"{folder}/data", f"{folder}/deep/er",
    ):  # fmt: skip
        with pytest.raises(BadRequestError):
            catalog.create_table("ns.bad", SCHEMA, location=bad)
        with pytest.raises(BadRequestError):
            catalog.create_table_transaction("ns.bad", SCHEMA, location=bad)
    own = catalog.create_table("ns.own", SCHEMA, location=f"{warehouse}/ns/chosen")
    for bad in (f"{warehouse}/ns", folder, f"{folder}/data", f"{warehouse}/ns/chosen/deeper"):
        with pytest.raises(BadRequestError), own.transaction() as change:
            change._apply((SetLocationUpdate(location=bad),))
    with pytest.raises(BadRequestError), own.transaction() as change:
        change.set_properties({"write.data.path": f"{folder}/data"})
    with pytest.raises(BadRequestError):
        catalog.create_table("ns.bad", SCHEMA, properties={"write.data.path": folder})
    with own.transaction() as change:
        change.set_properties({"write.data.path": f"{warehouse}/ns/chosen/elsewhere"})
    assert ask(address, "/v1/default/namespaces/ns/tables/own?purgeRequested=true", method="DELETE")[0] == 204
    assert ask(address, "/v1/default/namespaces/ns/tables/own?purgeRequested=true", method="DELETE")[0] == 404
    assert not (app.settings.data / "warehouse/ns/chosen").exists()
    assert catalog.load_table("ns.kept").scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_table_that_goes_while_it_is_looked_up_is_not_there(
    app: App, address: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    catalog.create_namespace_if_not_exists("ns")
    catalog.create_table("ns.going", SCHEMA)
    read, lake = FromInputFile.table_metadata, app.lake(Profile("default"))
    gone: list[str] = []

    def late(file, *given, **more):  # type: ignore[no-untyped-def]
        if "going" in file.location and not gone:
            gone.append(file.location)
            lake.drop("ns.going", purge=True)
        return read(file, *given, **more)

    monkeypatch.setattr(FromInputFile, "table_metadata", late)
    assert ask(address, "/v1/default/namespaces/ns/tables/going", method=method)[0] == 404
    assert gone


def test_what_others_placed_badly_is_not_purged(app: App, address: str, catalog: Catalog) -> None:
    """An engine that uses the catalog's rows directly may put a table anywhere, or let it stand on another one's files."""
    catalog.create_namespace("ns")
    kept = catalog.create_table("ns.kept", SCHEMA)
    kept.append(pa.table({"id": [1], "v": ["x"]}, schema=SCHEMA))
    lake = app.lake(Profile("default"))
    lake.catalog.create_table("ns.wide", SCHEMA, location=f"file://{app.settings.data.absolute()}/warehouse/ns")
    copied = lake.catalog.create_table("ns.copied", SCHEMA)
    copied.add_files([file.file.file_path for file in catalog.load_table("ns.kept").scan().plan_files()])
    assert ask(address, "/v1/default/namespaces/ns/tables/wide?purgeRequested=true", method="DELETE")[0] == 403
    with pytest.raises(Refused, match="other tables"):
        lake.check_purge("ns.wide")
    lake.drop("ns.wide", purge=True)
    elsewhere = app.settings.data / "elsewhere"
    lake.catalog.create_table("ns.outside", SCHEMA, location=f"file://{elsewhere.absolute()}")
    (elsewhere / "letter").write_text("not the table's")
    lake.drop("ns.outside", purge=True)
    assert [path.name for path in elsewhere.rglob("*") if path.is_file()] == ["letter"]
    assert ask(address, "/v1/default/namespaces/ns/tables/copied?purgeRequested=true", method="DELETE")[0] == 204
    assert catalog.load_table("ns.kept").scan().to_arrow().num_rows == 1


def test_strange_names_make_plain_folders(app: App) -> None:
    storage = app.lake(Profile("default")).storage
    for name in ("?", "#x", "a%2Fb", "../../x", "..", "."):
        location = storage.new_location(f"ns.{name}")
        assert (location.count("/"), set("?#%") & set(location)) == (storage.warehouse.count("/") + 2, set())
        assert "/." not in storage.new_location(f"...{name}")


def test_what_is_no_request_is_said_to_be_none(address: str, catalog: Catalog) -> None:
    catalog.create_namespace("ns")
    catalog.create_table("ns.t", SCHEMA)
    for path in ("nowhere/namespaces", "nowhere/namespaces/ns/tables/t"):
        status, answer = ask(address, f"/v1/{path}")
        assert (status, answer["error"]["type"]) == (404, "NoSuchWarehouseException")
    table, v1 = "namespaces/ns/tables/t", "/v1/default"
    for path in ("namespaces", "namespaces/ns/properties", "namespaces/ns/tables", table, "tables/rename", "transactions/commit"):
        for body in ([], "text", 5, [{}]):
            assert ask(address, f"{v1}/{path}", body)[0] == 400, (path, body)
    for path, body in (
        ("namespaces", {"namespace": "abc"}), ("namespaces", {"namespace": 5}), ("namespaces", {"namespace": ["x"], "properties": 5}),
        ("namespaces/ns/properties", {"removals": 5}), ("namespaces/ns/properties", {"updates": [1]}),
        ("tables/rename", {"source": 5, "destination": {}}), ("tables/rename", {"source": {"namespace": ["ns"], "name": 5}}),
        ("transactions/commit", {"table-changes": 5}), ("transactions/commit", {"table-changes": [5]}), ("namespaces/ns/tables", {}),
        (table, {"requirements": 5, "updates": [5]}),
    ):  # fmt: skip
        assert ask(address, f"{v1}/{path}", body)[0] == 400, (path, body)


def test_without_a_token_there_is_none(app: App) -> None:
    running = RunningHttp(app)
    try:
        assert ask(f"http://127.0.0.1:{running.server.port}/iceberg", "/v1/config")[0] == 404
    finally:
        running.stop()


FIELDS = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}


def test_every_commit_is_answered(address: str, catalog: Catalog) -> None:
    """Of a table that would have no schema PyIceberg says so by a StopIteration, which no coroutine gets to see."""
    catalog.create_namespace("ns")
    table = "/v1/default/namespaces/ns/tables/t"
    status, answer = ask(address, table, {"requirements": [{"type": "assert-create"}], "updates": []})
    assert (status, answer["error"]["type"]) == (400, "BadRequestException")


def test_what_cannot_be_is_no_commit_of_unknown_outcome(address: str, catalog: Catalog) -> None:
    catalog.create_namespace("ns")
    catalog.create_namespace("ns.inner")
    tables = "/v1/default/namespaces/ns/tables"
    for name in ("n" * 300, "é" * 256, "a\0b", "a/b"):
        assert ask(address, tables, {"name": name, "schema": FIELDS})[0] == 400, name
        assert ask(address, "/v1/default/namespaces", {"namespace": [name]})[0] == 400, name
    assert ask(address, tables, {"name": "é" * 255, "schema": FIELDS})[0] == 200
    versions = {"3": 406, "9": 400}
    for version, expected in versions.items():
        assert ask(address, tables, {"name": "t", "schema": FIELDS, "properties": {"format-version": version}})[0] == expected
    table = catalog.create_table("ns.t", SCHEMA)
    one = {"identifier": {"namespace": ["ns"], "name": "t"}, "requirements": [], "updates": []}
    assert ask(address, "/v1/default/transactions/commit", {"table-changes": [one, one]})[0] == 400
    other = {"action": "assign-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    assert ask(address, f"{tables}/t", {"requirements": [], "updates": [other]})[0] == 400
    assert ask(address, f"{tables}/t", {"requirements": [], "updates": [{"action": "remove-properties", "removals": ["never"]}]})[0] == 200
    assert catalog.load_table("ns.t").metadata.table_uuid == table.metadata.table_uuid
    # It would seem to be gone, and be there.
    status, answer = ask(address, "/v1/default/namespaces/ns", method="DELETE")
    assert (status, answer["error"]["type"]) == (409, "NamespaceNotEmptyException")


def test_of_many_at_once_the_others_hear_that_they_came_second(address: str, catalog: Catalog) -> None:
    """Never that nobody knows: a client that is told so may not try again."""
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda _: ask(address, "/v1/default/namespaces", {"namespace": ["ns"]})[0], range(16))
        assert sorted(made) == [200] + [409] * 15
        changed = pool.map(lambda n: ask(address, "/v1/default/namespaces/ns/properties", {"updates": {"a": str(n)}})[0], range(16))
        assert set(changed) <= {200, 409}
        names = ["a", "b", "c"]
        for name in names:
            catalog.create_table(f"ns.{name}", SCHEMA)

        def commit(number: int) -> int:
            updates = [{"action": "set-properties", "updates": {f"k{number}": "v"}}]
            order = names if number % 2 else names[::-1]
            changes = [{"identifier": {"namespace": ["ns"], "name": name}, "requirements": [], "updates": updates} for name in order]
            return ask(address, "/v1/default/transactions/commit", {"table-changes": changes})[0]

        done = list(pool.map(commit, range(80)))
    assert set(done) == {204, 409}
    for name in names:
        assert len(catalog.load_table(f"ns.{name}").properties) == done.count(204)


def test_a_conflict_says_what_has_moved(address: str, catalog: Catalog) -> None:
    catalog.create_namespace("ns")
    first = catalog.create_table("ns.t", SCHEMA)
    rows = pa.table({"id": [1], "v": ["x"]}, schema=SCHEMA)
    first.append(rows)
    with attached(address) as database:
        database.execute("BEGIN; INSERT INTO lake.ns.t VALUES (2, 'y')")
        catalog.load_table("ns.t").append(rows)
        with pytest.raises(duckdb.TransactionException, match="branch main has changed"):
            database.execute("COMMIT")


def test_writers_of_two_branches_are_told_to_try_again(catalog: Catalog) -> None:
    """Neither is in the other's way but by the number of its snapshot."""
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", SCHEMA)
    rows = pa.table({"id": [1], "v": ["x"]}, schema=SCHEMA)
    table.append(rows)
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "audit").commit()
    slow = catalog.load_table("ns.t").transaction()
    slow.append(rows, branch="audit")
    catalog.load_table("ns.t").append(rows)
    # As any engine it tries again by itself.
    slow.commit_transaction()
    found = catalog.load_table("ns.t")
    for branch in ("main", "audit"):
        snapshot = found.snapshot_by_name(branch)
        assert snapshot is not None
        assert found.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 2
