"""Known secrets, and everything that Modak and Postgres write down: none of them is in there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests import restoring
from tests.gateways import RunningGateway
from tests.inline import inlined
from tests.restoring import EVENTS, app_of, run_tier
from tests.support import rows, value

from modak.app import App
from modak.catalog import leadership
from modak.catalog.migrate import migrate
from modak.cli.main import main
from modak.connection import connect
from modak.core.registration import Options
from modak.embedded.postgres import Cluster
from modak.gateway.background import running
from modak.worker.lease import leading

pytestmark = pytest.mark.inline

SECRETS = {
    "MODAK_LOAD_TOKEN": "t0ken-of-the-loads",
    "MODAK_CONSOLE_PASSWORD": "c0nsole-passw0rd",
    "MODAK_CREDENTIALS_COLD": "s3.access-key-id=AK1A0000,s3.secret-access-key=s3cr3t-of-the-bucket",
}
WORDS = ["t0ken-of-the-loads", "c0nsole-passw0rd", "s3cr3t-of-the-bucket", "dsn-passw0rd"]


# Of sessions of that moment: a pin, a claim, a leader.
TRANSIENT = """
    insert into modak.read_pins (table_id, pinned_tier_key_hi) select table_id, 0 from modak.tables;
    insert into modak.claims (iceberg_table, ticket, node, backend_pid) values ('public.x', 5, 'local', 1);
    insert into modak.leader (epoch, holder, host, pid, backend_pid) values (7, 'gone', 'elsewhere', 1, 1)
"""


@dataclass(frozen=True)
class World:
    app: App
    folder: Path
    log: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server that writes every statement into its log."""
    folder = tmp_path_factory.mktemp("secrets")
    cluster = Cluster.start(folder / "server", options={"fsync": "off", "log_statement": "all", "log_min_duration_statement": "0"})
    try:
        with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
            admin.execute("create role boss superuser login password 'dsn-passw0rd'; create role backup login password 'b'")
            admin.execute("grant pg_read_all_data to backup")
        app = app_of(make_conninfo(cluster.dsn(), user="boss", password="dsn-passw0rd"), folder / "data")
        gateway = RunningGateway(app)
        with connect(app.dsn, autocommit=True) as connection:
            migrate(connection)
            connection.execute(restoring.EVENTS_SQL)
        gateway.start()
        with inlined(), connect(app.dsn, autocommit=True) as connection:
            restoring.put_under_modak(app, connection, EVENTS, Options(tier_key="event_time", primary_key=("id",), lag="100", width="100"))
            run_tier(app, EVENTS, drop=True)
            connection.execute("update public.events set val = 'x' where id = 1")
        gateway.stop()
        yield World(app, folder, folder / "server" / "postgres.log")
    finally:
        cluster.stop("immediate")


def gateway_password(world: World) -> str:
    with world.app.connection() as connection:
        options = value(connection, "select umoptions from pg_user_mappings where srvname = 'modak_gateway'")
    return str(next(option.partition("=")[2] for option in options if option.startswith("password=")))


def without_secrets(text: str, *more: str) -> bool:
    return not any(word in text for word in (*WORDS, *more))


COMMANDS = [
    ["migrate"],
    ["profile", "set", "cold", "--warehouse", "s3://bucket/cold", "--credentials", "COLD"],
    ["profile", "list", "--json"],
    ["status", "--json"],
    ["export"],
    ["plan", "public.nothing", "--tier-key", "x"],
    ["reconcile", "--json"],
    ["register", "public.events_2", "--tier-key", "event_time", "--profile", "cold"],
    ["status", "--dsn", "postgresql://boss:dsn-passw0rd@127.0.0.1:1/nowhere"],
    ["status", "--dsn", "postgresql://boss:dsn-passw0rd@[wrong"],
]


def said(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit):
        main(list(command))
    out, err = capsys.readouterr()
    return out + err


def test_commands_say_none(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in {**SECRETS, "MODAK_DSN": world.app.dsn, "MODAK_DATA": str(world.folder / "data")}.items():
        monkeypatch.setenv(name, text)
    for command in COMMANDS:
        text = said(capsys, *command)
        assert text, command
        assert without_secrets(text, gateway_password(world)), command
    monkeypatch.setenv("MODAK_CREDENTIALS_COLD", "s3cr3t-of-the-bucket")
    text = said(capsys, "status")
    assert "MODAK_CREDENTIALS_COLD cannot be read" in text
    assert without_secrets(text)


def test_the_catalog_and_the_servers_log_hold_none(world: World) -> None:
    dumped = restoring.run("pg_dump", "--schema=modak", "--schema=modak_lake", world.app.dsn)
    assert without_secrets(dumped)
    log = world.log.read_text(errors="replace")
    assert "new_gateway_password" in log
    assert gateway_password(world) not in log


def test_a_dump_by_a_role_that_only_reads_holds_none(world: World) -> None:
    """Not the gateway's password either; and it is a whole dump."""
    dsn = make_conninfo(world.app.dsn, user="backup", password="b")
    with connect(world.app.dsn, autocommit=True) as connection:
        connection.execute(TRANSIENT)
    dumped = restoring.run("pg_dump", dsn)
    assert without_secrets(dumped, gateway_password(world))
    assert "CREATE USER MAPPING FOR public SERVER modak_gateway" in dumped
    with psycopg.connect(world.app.dsn, autocommit=True) as admin:
        admin.execute("create database from_backup template template0")
    file = world.folder / "dump"
    restoring.dump(dsn, file)
    app = app_of(make_conninfo(world.app.dsn, dbname="from_backup"), world.folder / "data")
    restoring.restore(app.dsn, file)
    assert restoring.apply(app, "this").findings == ()
    with restoring.gateway_of(app), connect(app.dsn, autocommit=True) as connection:
        assert value(connection, "select val from public.events where id = 1") == "x"
        # What others held at that moment holds nobody back here.
        assert value(connection, "select count(*) from modak.read_pins where pinned_tier_key_hi = 0") == 0
        connection.execute("select modak.reap_claims()")  # unless the gateway has done so already
        assert value(connection, "select count(*) from modak.claims") == 0
        with leading(partial(app.connection, application=leadership.lease_name()), 15.0, threading.Event()) as lease:
            assert lease is not None
            assert lease.epoch == 8
    with connect(world.app.dsn, autocommit=True) as connection:
        connection.execute("delete from modak.read_pins; delete from modak.claims; delete from modak.leader")
    restoring.apply(world.app, "this")


def test_the_stores_key_is_in_no_dump(world: World) -> None:
    """Not even in a superuser's: the dump has one half of it. Whoever restores sets it again."""
    kept, read = ("AKIA", "st0red s'ecret é"), "select key, secret from modak.storage_secret()"
    with connect(world.app.dsn, autocommit=True) as connection:
        connection.execute("select modak.set_storage_secret(%s, %s, null)", kept)
        connection.execute("create database restored template template0")
        try:
            assert rows(connection, read) == [kept]
            dumped = restoring.run("pg_dump", world.app.dsn)
            assert "AKIA" in dumped
            assert "st0red" not in dumped
            assert kept[1].encode().hex() not in dumped
            restoring.dump(world.app.dsn, world.folder / "whole")
            restored = make_conninfo(world.app.dsn, dbname="restored")
            restoring.restore(restored, world.folder / "whole")
            with connect(restored, autocommit=True) as other:
                assert rows(other, read) == []
                other.execute("select modak.set_storage_secret(%s, %s, null)", kept)
                assert rows(other, read) == [kept]
            assert rows(connection, read) == [kept]
        finally:
            connection.execute("select modak.set_storage_secret(null, null, null)")
            connection.execute("drop database restored with (force)")
        assert rows(connection, read) == []


def test_a_password_that_got_into_a_dump_is_made_void(world: World) -> None:
    old = gateway_password(world)
    assert old in restoring.run("pg_dump", world.app.dsn)
    with running(world.app.gateway(new_password=True)) as gateway:
        new = gateway_password(world)
        with connect(world.app.dsn, autocommit=True) as connection:
            assert value(connection, "select val from public.events where id = 1") == "x"
        for password, works in ((new, True), (old, False)):
            assert _logs_in(gateway.port, password) is works
    assert old != new


def _logs_in(port: int, password: str) -> bool:
    try:
        psycopg.connect(host="127.0.0.1", port=port, user="modak_gateway", dbname="lake", password=password).close()
    except psycopg.OperationalError:
        return False
    return True


def test_the_dsn_is_masked_where_it_is_told(world: World) -> None:
    assert conninfo_to_dict(world.app.dsn)["password"] == "dsn-passw0rd"
    assert without_secrets(repr(world.app.settings))
    with world.app.job(EVENTS) as job:
        assert without_secrets(repr(job))
