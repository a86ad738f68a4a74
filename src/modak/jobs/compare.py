"""Compare the heap with the corrected lake, range by range, at one snapshot of both.

Sums of row digests per bucket of tier keys are computed where the rows are; only buckets that differ are looked at row by row, and those
are cut smaller until they fit, by a digest of the key where many rows share a tier key. Rows that the delta corrects are compared with
their correction, inside Postgres.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import sql

from modak.catalog import migrate, tables
from modak.connection import Connection, connect
from modak.core import bounds, digest
from modak.core.lake_table import LakeColumn
from modak.core.table import Name
from modak.jobs.context import JobContext
from modak.jobs.differences import DIFFERENCES_MAX, Compared, Difference, Found
from modak.jobs.spark import spark_failures
from modak.lake.storage import jdbc_url
from modak.source.expressions import canonical_key, encoded_key, reference, row_image
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.sqlfiles import trusted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS = 64
ROWS_MAX = 50_000  # keys and digests that are held at a time
IMAGES_MAX = 1_000  # whole rows
# With it Spark's driver opens a transaction, which is what a snapshot can be set for.
DELTA_FETCH_ROWS = 10_000


@dataclass(frozen=True)
class At:
    """A snapshot of the heap that somebody exported, and the lake's that it is to be like."""

    heap: str
    lake: int | None


Buckets = dict[int, tuple[int, int]]  # count and digest sum of each


class Comparison:
    """One period (its partitions, one per region as a rule) against the lake's rows of that range.

    Opens its own snapshot, so that T, S, delta and heap belong together.
    """

    def __init__(self, context: JobContext, partitions: Sequence[Name], columns: Sequence[LakeColumn]) -> None:
        self.context = context
        self.partitions = partitions
        self.label = ", ".join(map(str, partitions))
        self.columns = columns
        self.table = context.table
        self.keys = [next(column for column in columns if column.name == name) for name in context.table.primary_key_cols]
        self._has_delta = False
        self._floor: int | None = None
        self._snapshot: str | None = None
        self.key_column = canonical_key(self.table.key_type, reference(self.table.tier_key_col))

    def run(self, lower: int, upper: int, at: At | None = None, *, mend: Callable[[Sequence[Difference]], None] | None = None) -> Compared:
        """``mend`` is given every difference, a batch at a time, and the search goes on."""
        found = Found(mend)
        with spark_failures("the comparison"), connect(self.context.dsn, application="modak-verify", unhurried=True) as connection:
            connection.execute("set transaction isolation level repeatable read, read only")
            if at is not None:
                connection.execute(sql.SQL("set transaction snapshot {}").format(sql.Literal(at.heap)))
                return self._run_at(connection, at.lake, lower, upper, found)
            exported = connection.execute("select pg_export_snapshot() as name").fetchone()
            self._snapshot = exported["name"] if exported else None
            snapshot_id = tables.published_snapshot(connection, self.table.table_id)
            floor = tables.cutline(connection, self.table.table_id).retention_line
            if floor is not None and lower < floor:
                # What a copy still holds below R has expired, and the lake rightly knows nothing of it.
                lower, self._floor = floor, floor
            if lower >= upper:
                return Compared(0, ())
            self.look_for_delta(connection)
            low, high = self._span(connection, snapshot_id, lower, upper)
            lake = self.lake_rows(snapshot_id, low, high) if snapshot_id is not None else None
            rows = self._bisect(connection, lake, low, high, found)
            self._corrected(connection, lower, upper, found)
            if self.table.keep_heap:
                self._only_corrected(connection, lower, upper, found)
            return found.compared(rows)

    def _run_at(self, connection: Connection, snapshot_id: int | None, lower: int, upper: int, found: Found) -> Compared:
        """Of rows that no correction speaks of."""
        low, high = self._span(connection, snapshot_id, lower, upper)
        lake = self.lake_rows(snapshot_id, low, high) if snapshot_id is not None else None
        return found.compared(self._bisect(connection, lake, low, high, found))

    def look_for_delta(self, connection: Connection) -> None:
        """Most tables have no corrections most of the time, and need no join with them."""
        self._has_delta = connection.execute(migrate.SQL.query("has_delta"), {"table_id": self.table.table_id}).fetchone() is not None

    def _span(self, connection: Connection, snapshot_id: int | None, lower: int, upper: int) -> tuple[int, int]:
        """Finite ends: of an open partition, those of the rows that either side has."""
        limit = 2**62
        if lower > -limit and upper < limit:
            return lower, upper
        row = connection.execute(
            sql.SQL("select min({0}) as low, max({0}) as high from {1} r").format(trusted(self.key_column), self._source())
        ).fetchone()
        known = [row[end] for end in ("low", "high") if row is not None and row[end] is not None]
        if snapshot_id is not None:
            ends = self.lake_rows(snapshot_id, lower, upper).selectExpr("min(modak_key)", "max(modak_key)").collect()[0]
            known += [end for end in ends if end is not None]
        low, high = (min(known), max(known) + 1) if known else (0, 1)
        return (lower if lower > -limit else min(low, upper)), (upper if upper < limit else max(high, lower))

    # -- the two sides ---------------------------------------------------------------------------------------------

    def _source(self) -> sql.Composed:
        """The heap's rows of the period; regions may have their columns in another order."""
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.columns)
        floor = sql.SQL(" where {} >= {}").format(trusted(self.key_column), sql.Literal(self._floor))
        alive = floor if self._floor is not None else sql.SQL("")
        parts = [sql.SQL("select {} from only {}{}").format(names, identifier(partition), alive) for partition in self.partitions]
        return sql.SQL("({})").format(sql.SQL(" union all ").join(parts))

    def _heap_parts(self, low: int, high: int) -> dict[str, sql.Composable]:
        texts = [reference(column.name, "r") for column in self.columns]
        return {
            "source": self._source(),
            "key": trusted(canonical_key(self.table.key_type, reference(self.table.tier_key_col, "r"))),
            "digest": trusted(digest.postgres_digest(digest.postgres_key(self.columns, texts))),
            "key_text": trusted(self._key_text()),
            "pk": trusted(encoded_key(self.table.primary_key_cols, "r")),
            "table_id": sql.Literal(self.table.table_id),
            "low": sql.Literal(low),
            "high": sql.Literal(high),
        }

    def _key_text(self) -> str:
        return digest.postgres_key(self.keys, [reference(column.name, "r") for column in self.keys])

    def _heap_buckets(self, connection: Connection, low: int, high: int, bucket: str) -> Buckets:
        parts = self._heap_parts(low, high)
        rows = connection.execute(SQL.template("heap_buckets", **parts, bucket=trusted(bucket))).fetchall()
        return {row["bucket"]: (row["n"], int(row["digest"])) for row in rows}

    def lake_rows(self, snapshot_id: int, low: int, high: int) -> DataFrame:
        """The lake's rows of the range at S without those the delta speaks for: key text, digest, canonical key."""
        spark = self.context.spark()
        name = f"{self.context.lake.storage.catalog_name}.{self.table.lake_table_ref}"
        frame = spark.read.option("versionAsOf", snapshot_id).table(name).selectExpr(*self._as_now(snapshot_id))
        quoted = [_quoted(column.name) for column in self.columns]
        keys = [_quoted(column.name) for column in self.keys]
        tier = _quoted(self.table.tier_key_col)
        kind = next(column.type.iceberg for column in self.columns if column.name == self.table.tier_key_col)
        number = {"date": f"cast(unix_date({tier}) as bigint)", "timestamp": f"unix_micros(cast({tier} as timestamp))",
                  "timestamptz": f"unix_micros({tier})"}.get(kind, f"cast({tier} as bigint)")  # fmt: skip
        rows = frame.selectExpr(
            f"{digest.spark_key(self.keys, keys)} as modak_pk",
            f"{digest.spark_digest(digest.spark_key(self.columns, quoted))} as modak_digest",
            f"{number} as modak_key",
            f"to_json(struct({', '.join(quoted)})) as modak_row",
        ).where(f"modak_key >= {low} and modak_key < {high}")
        return rows.join(self._delta_keys(), "modak_pk", "left_anti") if self._has_delta else rows

    def _as_now(self, snapshot_id: int) -> list[str]:
        """A snapshot is read with the columns of its time: here under the names and types they have now. New ones are NULL."""
        lake = self.context.lake.load(self.table.lake_table_ref)
        snapshot = lake.snapshot_by_id(snapshot_id)
        schema = lake.schemas().get(snapshot.schema_id, lake.schema()) if snapshot and snapshot.schema_id is not None else lake.schema()
        then = {field.field_id: field.name for field in schema.fields}
        ids = tables.lake_field_ids(self.context.connection, self.table.table_id)
        numbers = {column.name: column.number for column in self.context.relation().columns}
        found = []
        for column in self.columns:
            old = then.get(ids.get(numbers[column.name], -1))
            source = "null" if old is None else _quoted(old)
            found.append(f"cast({source} as {column.type.spark}) as {_quoted(column.name)}")
        return found

    def _delta_keys(self) -> DataFrame:
        """Keys of the delta as Spark sees keys, read by Spark itself; in the comparison's own snapshot, since writers go on meanwhile."""
        parts = ["d.pk"] if len(self.keys) == 1 else [f"(modak.pk_parts(d.pk))[{number}]" for number in range(1, len(self.keys) + 1)]
        relation = self.context.relation()
        casts = []
        for column, part in zip(self.keys, parts, strict=True):
            heap_column = relation.column(column.name)
            assert heap_column is not None
            casts.append(f"({part})::{heap_column.type.display}")
        text = digest.postgres_key(self.keys, casts)
        url, user, password = jdbc_url(self.context.dsn)
        reader = (
            self.context.spark()
            .read.format("jdbc")
            .option("driver", "org.postgresql.Driver")
            .option("url", url)
            .option("user", user)
            .option("query", f"select {text} as modak_pk from modak.delta d where d.table_id = {self.table.table_id}")  # noqa: S608
        )
        if self._snapshot is not None:
            init = f"set transaction isolation level repeatable read, read only; set transaction snapshot '{self._snapshot}'"
            reader = reader.option("fetchsize", DELTA_FETCH_ROWS).option("sessionInitStatement", init)
        return (reader.option("password", password) if password else reader).load()

    @staticmethod
    def _lake_buckets(lake: DataFrame | None, low: int, high: int, bucket: str) -> Buckets:
        from pyspark.sql import functions

        if lake is None:
            return {}
        rows = (
            lake.where(f"modak_key >= {low} and modak_key < {high}")
            .groupBy(functions.expr(bucket))
            .agg(functions.count("*").alias("n"), functions.expr("sum(cast(modak_digest as decimal(38, 0)))").alias("digest"))
            .collect()
        )
        return {row[0]: (row["n"], int(row["digest"])) for row in rows}

    # -- finding the rows ------------------------------------------------------------------------------------------

    def _bisect(self, connection: Connection, lake: DataFrame | None, low: int, high: int, found: Found) -> int:
        """How many rows the heap has in the range."""
        width = max(1, -(-(high - low) // BUCKETS))
        key = canonical_key(self.table.key_type, reference(self.table.tier_key_col, "r"))
        ours = self._heap_buckets(connection, low, high, f"({key} - ({low})) / {width}")
        theirs = self._lake_buckets(lake, low, high, f"(modak_key - ({low})) div {width}")
        for bucket in _unlike(ours, theirs):
            if found.is_enough:
                break
            start = low + bucket * width
            end = min(start + width, high)
            count = max(ours.get(bucket, (0, 0))[0], theirs.get(bucket, (0, 0))[0])
            if count <= ROWS_MAX:
                self._rows(connection, lake, start, end, found)
            elif width == 1:
                self._slices(connection, lake, start, count, found)
            else:
                self._bisect(connection, lake, start, end, found)
        return sum(count for count, _ in ours.values())

    def _slices(self, connection: Connection, lake: DataFrame | None, key: int, count: int, found: Found) -> None:
        """One tier key of very many rows, a day say: cut by what the rows' own keys are."""
        number = -(-2 * count // ROWS_MAX)
        heap_slice = f"{digest.postgres_digest(self._key_text())} % {number}"
        lake_slice = f"{digest.spark_digest('modak_pk')} % {number}"
        ours = self._heap_buckets(connection, key, key + 1, heap_slice)
        theirs = self._lake_buckets(lake, key, key + 1, lake_slice)
        for one in _unlike(ours, theirs):
            if found.is_enough:
                break
            part = lake.where(f"{lake_slice} = {one}") if lake is not None else None
            self._rows(connection, part, key, key + 1, found, within=f"{heap_slice} = {one}")

    def _rows(self, connection: Connection, lake: DataFrame | None, low: int, high: int, found: Found, *, within: str = "true") -> None:
        """Keys and digests of both sides, and of those that differ the whole rows."""
        parts = self._heap_parts(low, high)
        rows = connection.execute(SQL.template("heap_rows", **parts, within=trusted(within))).fetchall()
        ours = {row["key_text"]: row["digest"] for row in rows}
        theirs: dict[str, int] = {}
        if lake is not None:
            lake = lake.where(f"modak_key >= {low} and modak_key < {high}")
            for row in lake.select("modak_pk", "modak_digest").collect():
                theirs[row["modak_pk"]] = row["modak_digest"] if row["modak_pk"] not in theirs else -1
        different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
        for start in range(0, len(different), IMAGES_MAX):
            if found.is_enough:
                break
            found.add(self._images(connection, lake, parts, different[start : start + IMAGES_MAX], theirs))

    def _images(
        self, connection: Connection, lake: DataFrame | None, parts: dict[str, sql.Composable], keys: list[str], theirs: dict[str, int]
    ) -> list[Difference]:
        needed = {name: parts[name] for name in ("source", "key", "key_text", "pk", "low", "high")}
        image = trusted(row_image(self.columns, "r"))
        asked = connection.execute(SQL.template("heap_images", **needed, image=image, keys=sql.Literal(keys)))
        ours = {row["key_text"]: row for row in asked.fetchall()}
        values: dict[str, str] = {}
        if lake is not None and any(key in theirs for key in keys):
            wanted = self.context.spark().createDataFrame([(key,) for key in keys if key in theirs], "modak_pk string")
            values = {row["modak_pk"]: row["modak_row"] for row in lake.join(wanted, "modak_pk").select("modak_pk", "modak_row").collect()}
        elsewhere = self._elsewhere(connection, {key: value for key, value in values.items() if key not in ours})
        return [
            Difference(
                ours[key]["pk"] if key in ours else key,
                str(ours[key]["image"]) if key in ours else None,
                "twice" if theirs.get(key) == -1 else values.get(key),
                self.label,
            )
            for key in keys
            if key not in elsewhere
        ]

    def _elsewhere(self, connection: Connection, images: dict[str, str]) -> set[str]:
        """Lake rows that these partitions would not take: where regions (LIST over RANGE) have unlike partitions, a late row of one may
        lie in a period that only another has a partition for."""
        relation = self.context.relation()
        if not images or len(bounds.range_parents(relation)) < 2:
            return set()
        names = dict.fromkeys((*relation.key_columns, self.table.tier_key_col))
        columns = [column for name in names if (column := relation.column(name))]
        casts = [
            sql.SQL("(u.image->>{})::{} as {}").format(sql.Literal(one.name), trusted(one.type.display), sql.Identifier(one.name))
            for one in columns
        ]
        read = "select pg_get_partition_constraintdef(%s::regclass) as condition"
        taken = [connection.execute(read, [identifier(name).as_string()]).fetchone() for name in self.partitions]
        conditions = [trusted(f"({row['condition']})") for row in taken if row is not None and row["condition"]]
        found = connection.execute(
            SQL.template(
                "rows_taken",
                casts=sql.SQL(", ").join(casts),
                keys=sql.Literal(list(images)),
                images=sql.Literal(list(images.values())),
                conditions=sql.SQL(" or ").join(conditions),
            )
        ).fetchall()
        return images.keys() - {row["key"] for row in found}

    def _corrected(self, connection: Connection, low: int, high: int, found: Found) -> None:
        """Rows that the delta speaks for: the heap copy must say the same."""
        parts = self._heap_parts(low, high)
        needed = {name: parts[name] for name in ("source", "key", "pk", "table_id", "low", "high")}
        image = trusted(row_image(self.columns, "r"))
        for page in self._pages(connection, "heap_against_delta", found, **needed, image=image):
            found.add([Difference(row["pk"], row["heap"], row["delta"], self.label) for row in page])

    def _only_corrected(self, connection: Connection, low: int, high: int, found: Found) -> None:
        """Rows that only the delta has; a heap that is kept has every row."""
        parts = self._heap_parts(low, high)
        needed = {name: parts[name] for name in ("source", "pk", "table_id", "low", "high")}
        for page in self._pages(connection, "delta_without_heap", found, **needed):
            found.add([Difference(row["pk"], None, row["delta"], self.label, row["version"]) for row in page])

    @staticmethod
    def _pages(connection: Connection, template: str, found: Found, **parts: sql.Composable) -> Iterator[list[dict[str, Any]]]:
        after = None
        while not found.is_enough:
            text = SQL.template(template, **parts, after=sql.Literal(after), limit=sql.Literal(IMAGES_MAX))
            page = connection.execute(text).fetchall()
            if page:
                yield page
            if len(page) < IMAGES_MAX:
                return
            after = page[-1]["pk"]


def _unlike(ours: Buckets, theirs: Buckets) -> list[int]:
    return sorted(bucket for bucket in ours.keys() | theirs.keys() if ours.get(bucket, (0, 0)) != theirs.get(bucket, (0, 0)))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def lake_duplicates(context: JobContext, columns: Sequence[LakeColumn]) -> list[Difference]:
    """Keys that the lake holds more than once at S, as the delta leaves it."""
    snapshot_id = tables.published_snapshot(context.connection, context.table_id)
    if snapshot_id is None:
        return []
    comparison = Comparison(context, [context.table.heap], columns)
    comparison.look_for_delta(context.connection)
    rows = (
        comparison.lake_rows(snapshot_id, -(2**63), 2**63 - 1)
        .groupBy("modak_pk")
        .agg({"modak_row": "max", "modak_key": "count"})
        .where("`count(modak_key)` > 1")
        .limit(DIFFERENCES_MAX)
        .collect()
    )
    return [Difference(found["modak_pk"], None, f"{found['count(modak_key)']} times: {found['max(modak_row)']}", "lake") for found in rows]
