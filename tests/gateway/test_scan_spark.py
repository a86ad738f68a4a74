"""What Spark leaves behind, read without Spark: its deletes in both granularities, its file:/ paths, its evolved columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modak.app import App
from modak.core.profile import Profile
from modak.scan.engine import Engine
from modak.scan.table import ColdTables

pytestmark = pytest.mark.spark

_TABLE = "modak.public.t"
_MODES = ", ".join(f"'write.{kind}.mode'='merge-on-read'" for kind in ("delete", "merge", "update"))
_STEPS = (
    f"insert into {_TABLE} select /*+ coalesce(1) */ id, cast(id % 3 as int), concat('v', id), cast(id as float) / 3, "
    "date_from_unix_date(cast(id * 100000 - 2000000 as int)), timestamp_micros(id * 1000000000000 - 9000000000000) from range(60)",
    f"delete from {_TABLE} where id % 10 = 3",
    f"alter table {_TABLE} set tblproperties ('write.delete.granularity'='partition')",
    f"merge into {_TABLE} t using (select id from range(50, 70)) s on t.id = s.id "
    "when matched then update set v = 'merged' when not matched then insert (id, p, v, x, d, ts) values (s.id, 1, 'new', null, null, null)",
    f"alter table {_TABLE} rename column v to w",
    f"alter table {_TABLE} add column later string",
    f"alter table {_TABLE} alter column x type double",
    f"update {_TABLE} set later = 'set' where id between 20 and 24",
    f"delete from {_TABLE} where p = 2 and id > 40",
)


def test_every_snapshot_reads_as_spark_reads_it(app: App, tmp_path: Path) -> None:
    profile = Profile("default")
    spark = app.spark(profile)
    spark.sql("create namespace if not exists modak.public")
    spark.sql(
        f"create table {_TABLE} (id bigint not null, p int, v string, x float, d date, ts timestamp) using iceberg partitioned by (p) "
        f"tblproperties ('format-version'='2', {_MODES})"
    )
    for step in _STEPS:
        spark.sql(step)
    lake = app.lake(profile).load("public.t")
    numbers = {snapshot.snapshot_id: snapshot.sequence_number for snapshot in lake.metadata.snapshots}
    assert len(numbers) == 5
    engine = Engine([app.storage(profile)], memory_limit="1GB", threads=2, temp_directory=tmp_path / "duckdb")
    cold = ColdTables(engine)
    newest = cold.snapshot(lake.metadata_location, max(numbers.values()), {})
    assert any(file.deletes for file in newest.files)
    assert all(file.location.startswith("file:/") and file.path.startswith("/") for file in newest.files)
    for snapshot_id, number in numbers.items():
        snapshot = cold.snapshot(lake.metadata_location, number, {})
        relation, _ = cold.relation(snapshot, ["id", "p", "w", "x", "d", "ts"])
        found = engine.cursor().execute(f"select id, p, w, x, d - date '1970-01-01', epoch_us(ts) from {relation} c order by id").fetchall()
        assert found == _by_spark(spark, snapshot_id)
    relation, _ = cold.relation(newest, ["later"])
    assert engine.cursor().execute(f"select later, count(*) from {relation} c group by all order by all").fetchall()[0][0] == "set"


def _by_spark(spark: Any, snapshot_id: int) -> list[tuple[Any, ...]]:
    """At its snapshot Spark shows the columns of that time."""
    rows = spark.sql(f"select * from {_TABLE} version as of {snapshot_id}")
    name = "w" if "w" in rows.columns else "v"
    exact = rows.selectExpr("id", "p", name, "cast(x as double)", "unix_date(d)", "unix_micros(ts)")
    return sorted(tuple(row) for row in exact.collect())
