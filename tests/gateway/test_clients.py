"""Programs that people use, through a whole gateway with its lake: psql, psycopg, SQLAlchemy, Java's driver from Spark; with TLS."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import conninfo
from tests.gateways import RunningGateway
from tests.worlds import World

from modak.app import App
from modak.embedded.server_binaries import find_server_binaries
from modak.gateway.fdw.session import FdwSession

pytestmark = pytest.mark.spark

PSQL = str(find_server_binaries().bin_dir / "psql")
ENCRYPTED = "select count(*), max(id) from public.t_large where key < 1000"


def made(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made(tmp_path_factory.mktemp("tls"), "gateway")


@pytest.fixture(scope="module")
def encrypted(world: World, certificate: tuple[Path, Path]) -> Iterator[RunningGateway]:
    """A second gateway for the same database, with TLS; Postgres asks the one that came last."""
    running = RunningGateway(App(replace(world.app.settings, gateway_cert=certificate[0], gateway_key=certificate[1])))
    running.start()
    yield running
    running.stop()
    world.gateway.stop()
    world.gateway.start()


def on(world: World, port: int, **changed: Any) -> str:
    return conninfo.make_conninfo(world.dsn, **({"host": "127.0.0.1", "port": port} | changed))


def psql(dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    command = [PSQL, dsn, "-X", "-At", "-v", "ON_ERROR_STOP=1"]
    return subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)


def test_tls_to_the_letter_of_sslmode(world: World, encrypted: RunningGateway, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    root = str(certificate[0])
    for mode in ({"sslmode": "require"}, {"sslmode": "verify-ca", "sslrootcert": root}, {"sslmode": "verify-full", "sslrootcert": root}):
        with psycopg.connect(on(world, encrypted.port, **mode)) as connection:
            assert connection.pgconn.ssl_in_use
            assert connection.execute(ENCRYPTED).fetchall() == [(1000, 999)]
        done = psql(on(world, encrypted.port, **mode), f"{ENCRYPTED};\n\\conninfo\n")
        assert done.stdout.splitlines()[0] == "1000|999", done.stderr
        assert "TLS" in done.stdout or "SSL" in done.stdout
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(on(world, encrypted.port, sslmode="verify-ca", sslrootcert=str(made(tmp_path, "other")[0])))
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        psycopg.connect(on(world, world.gateway.port, sslmode="require"))


def test_postgres_itself_comes_in_by_tls_where_it_is_offered(world: World, encrypted: RunningGateway) -> None:
    with psycopg.connect(world.dsn, autocommit=True) as session:
        assert session.execute(ENCRYPTED).fetchall() == [(1000, 999)]
        served = [one for _, one in encrypted.gateway._server._sessions.values() if isinstance(one, FdwSession)]
        assert [one.channel.is_encrypted for one in served] == [True]


def test_psql_describes_and_copies(world: World, tmp_path: Path) -> None:
    there, direct = on(world, world.gateway.port), world.dsn
    copied = tmp_path / "copied.csv"
    described = "\\d public.t_bigint\n\\d+ public.t_large\n\\dv public.*\n\\d modak.cutline\n"
    assert psql(there, described).stdout == psql(direct, described).stdout
    script = f"\\copy (select id, key from public.t_bigint where key < 30 order by id) to '{copied}' csv\n"
    script += "copy (select count(*) from public.t_large) to stdout;\n\\set n 5\nselect max(id) from t_large where key < :n;\n"
    done = psql(there, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["COPY", "4", "80000", "4"]
    assert copied.read_text().split() == ["0,0", "1,10", "2,20", "10001,10"]


@pytest.fixture
def engine(world: World) -> Iterator[sa.Engine]:
    parts = conninfo.conninfo_to_dict(world.dsn)
    where = sa.URL.create(
        "postgresql+psycopg", str(parts["user"]), str(parts["password"]), "127.0.0.1", world.gateway.port, str(parts["dbname"])
    )
    made = sa.create_engine(where)
    yield made
    made.dispose()


def test_sqlalchemy_reflects_what_postgres_has(world: World, engine: sa.Engine) -> None:
    direct = sa.create_engine(sa.make_url(world.dsn).set(drivername="postgresql+psycopg"))
    here, there = sa.inspect(engine), sa.inspect(direct)
    assert "t_bigint" in here.get_view_names("public")
    assert here.get_table_names("public") == there.get_table_names("public")
    for name in ("t_bigint", "t_large_hot", "p_bigint"):
        assert repr(here.get_columns(name)) == repr(there.get_columns(name))
        assert here.get_pk_constraint(name) == there.get_pk_constraint(name)
    direct.dispose()


def test_sqlalchemy_reads_and_writes(engine: sa.Engine) -> None:
    metadata = sa.MetaData()
    table, plain = (sa.Table(name, metadata, autoload_with=engine) for name in ("t_bigint", "p_bigint"))

    def both(make: Any) -> tuple[list[Any], list[Any]]:
        with engine.connect() as connection:
            found, wanted = (connection.execute(make(one)).all() for one in (table, plain))
            return [tuple(row) for row in found], [tuple(row) for row in wanted]

    for make in (
        lambda t: sa.select(t.c.n, sa.func.count(), sa.func.sum(t.c.num)).where(t.c.small != 3).group_by(t.c.n).order_by(t.c.n),
        lambda t: sa.select(t.c.id, t.c.at, t.c.u, t.c.j).where(t.c.id.in_([3, 40, 300, 470])).order_by(t.c.id),
        lambda t: (
            sa.select(t.c.id).where(t.c.t.like("Zeile 1%"), t.c.day >= sa.literal("2026-02-01").cast(sa.Date)).order_by(t.c.id).limit(5)
        ),
        lambda t: sa.select(t.c.id, sa.func.row_number().over(partition_by=t.c.v, order_by=t.c.id)).order_by(t.c.id).offset(7).limit(9),
        lambda t: sa.select(sa.func.count()).select_from(t.join(u := t.alias(), u.c.id == t.c.id + 40)).where(t.c.b.is_(True)),
    ):
        found, wanted = both(make)
        assert found == wanted
    with engine.connect() as connection:
        before = connection.scalar(sa.select(sa.func.count()).select_from(table))
        connection.execute(table.insert(), [{"id": 900_001, "key": 4500}, {"id": 900_002, "key": 35}])
        connection.execute(table.update().where(table.c.id == 900_002).values(t="late"))
        assert connection.scalar(sa.select(table.c.t).where(table.c.id == 900_002)) == "late"
        assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == before + 2
        connection.rollback()
        assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == before


def test_sqlalchemy_streams_many_rows(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        streamed = connection.execution_options(yield_per=1000).execute(sa.text("select id, t from t_large where key < 5000 order by id"))
        assert [row.id for row in streamed] == list(range(5000))


def test_java_reads_through_the_port(world: World, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark's own way to a database: pgjdbc, which prepares, binds in binary, and fetches in portions."""
    parts = conninfo.conninfo_to_dict(world.dsn)
    spark = world.app.spark()

    def read(table: str, **options: Any) -> Any:
        reader = spark.read.format("jdbc").option("url", f"jdbc:postgresql://127.0.0.1:{world.gateway.port}/{parts['dbname']}")
        chosen = {"user": parts["user"], "password": parts["password"], "dbtable": table, "driver": "org.postgresql.Driver", **options}
        return reader.options(**{name: str(value) for name, value in chosen.items()}).load()

    frame = read("public.t_bigint", fetchsize=50)
    plain = read("public.p_bigint", fetchsize=50)
    assert frame.schema == plain.schema
    columns = ["id", "key", "small", "n", "big", "f", "d", "num", "t", "v", "b", "day", "at", "u", "raw"]
    found, wanted = (sorted(one.select(columns).collect(), key=lambda row: (row.id, row.key)) for one in (frame, plain))
    assert found == wanted
    narrow = frame.where("key >= 3900 and key < 4100 and n > 3").select("id")
    narrow.explain()
    assert "*GreaterThanOrEqual(key,3900)" in capsys.readouterr().out
    assert sorted(row.id for row in narrow.collect()) == sorted(
        row.id for row in plain.where("key >= 3900 and key < 4100 and n > 3").select("id").collect()
    )
    parted = read("public.t_large", fetchsize=1000, partitionColumn="id", lowerBound=0, upperBound=80_000, numPartitions=3)
    assert parted.select("id").distinct().count() == 80_000
    asked = "(select n, count(*) as many, sum(num) as total from public.t_bigint group by n) as q"
    expected = "(select n, count(*) as many, sum(num) as total from public.p_bigint group by n) as q"
    wanted = sorted(read(expected).collect())
    with caplog.at_level(logging.DEBUG, "modak.gateway"):
        assert sorted(read(asked).collect()) == wanted
    assert not [record.getMessage() for record in caplog.records if "left to Postgres" in record.getMessage()]
