"""One seam for all relations of a query: the client's own snapshot, and what the catalog says in it.

The client's session tells who asks, under which settings, and exports its snapshot; it needs no rights on the catalog for that. A reader
of the gateway's takes the snapshot over and reads T, S and the state of the delta in it, as the two-tier view would.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from modak.gateway.analytics.reader import Reader
from modak.gateway.analytics.relations import RegisteredRelation, fingerprints_sql
from modak.gateway.interception import ClientSession

_BEGIN = "begin isolation level repeatable read read only; "
# Texts go out as these settings say; the lake's engine knows one way of each.
_SETTINGS = (
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "extra_float_digits",
    "bytea_output",
    "client_encoding",
    "standard_conforming_strings",
    "transform_null_equals",
    "max_prepared_transactions",
    "statement_timeout",
)


class Declined(Exception):
    """This statement is Postgres's to answer, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Client:
    """What the client's session said of itself in the snapshot it exported."""

    snapshot: str | None
    isolation: str
    has_written: bool
    user: str
    now_micros: int
    shadows: bool
    settings: dict[str, str]
    oids: tuple[int | None, ...]
    readable: tuple[bool, ...]

    @property
    def timeout_seconds(self) -> float:
        """Of the client's statement_timeout; 0 for none."""
        return float(self.settings["statement_timeout"])


@dataclass(frozen=True)
class Seam:
    """A relation's seam: T, S with its metadata file, R, and how many corrections there are."""

    relation: RegisteredRelation
    tier_key_hi: int
    sequence_number: int | None
    metadata_location: str
    retention_line: int | None
    delta_rows: int


def client_sql(names: Sequence[Sequence[str]], functions: Sequence[str], *, alone: bool) -> str:
    """The one statement asked of a client's session. ``alone``: outside a transaction of the client's."""
    isolation = "default_transaction_isolation" if alone else "transaction_isolation"
    serializable = f"pg_catalog.current_setting('{isolation}') = 'serializable'"
    written = "pg_catalog.pg_current_xact_id_if_assigned() is not null"
    relations = [f"pg_catalog.to_regclass({_literal('.'.join(map(_quoted, name)))})" for name in names]
    items = [
        f"pg_catalog.current_setting('{isolation}')",
        written,
        "current_user",
        "(extract(epoch from pg_catalog.transaction_timestamp()) * 1000000)::pg_catalog.int8",
        _shadows_sql(functions),
        *(_setting_sql(name) for name in _SETTINGS),
        *(f"{relation}::pg_catalog.oid::pg_catalog.int8" for relation in relations),
        *(f"pg_catalog.has_table_privilege({relation}::pg_catalog.oid, 'SELECT')" for relation in relations),
        # Last and conditional: a transaction that exported its snapshot can't be prepared any more.
        f"case when not ({serializable} or {written}) then pg_catalog.pg_export_snapshot() end",
    ]
    return "select " + ", ".join(items)


def _setting_sql(name: str) -> str:
    value = f"pg_catalog.current_setting('{name}')"
    return f"extract(epoch from {value}::pg_catalog.interval)" if name == "statement_timeout" else value


def _shadows_sql(functions: Sequence[str]) -> str:
    """Whether somebody put functions or operators of his own over built-in types where this session would find them."""
    others = "n.nspname = any (pg_catalog.current_schemas(true)) and n.nspname <> 'pg_catalog'"
    path = f"(select n.oid from pg_catalog.pg_namespace n where {others})"  # noqa: S608
    called = ", ".join(_literal(name) for name in functions) or "''"
    return (
        f"exists (select from pg_catalog.pg_proc f where f.proname in ({called}) and f.pronamespace in {path}"  # noqa: S608
        " and not exists (select from pg_catalog.unnest(f.proargtypes::pg_catalog.oid[]) as a where a >= 16384))"
        f" or exists (select from pg_catalog.pg_operator o where o.oid >= 16384 and o.oprnamespace in {path}"
        " and o.oprleft < 16384 and o.oprright < 16384)"
    )


def read_client(row: Sequence[str | None], count: int) -> Client:
    """The answer to ``client_sql`` for ``count`` names."""
    isolation, written, user, now, shadows, *rest = row
    settings, rest = rest[: len(_SETTINGS)], rest[len(_SETTINGS) :]
    return Client(
        snapshot=rest[2 * count],
        isolation=isolation or "",
        has_written=written == "t",
        user=user or "",
        now_micros=int(now or 0),
        shadows=shadows != "f",
        settings={name: value or "" for name, value in zip(_SETTINGS, settings, strict=True)},
        oids=tuple(int(oid) if oid is not None else None for oid in rest[:count]),
        readable=tuple(text == "t" for text in rest[count : 2 * count]),
    )


@contextlib.asynccontextmanager
async def client_of(session: ClientSession, names: Sequence[Sequence[str]], functions: Sequence[str]) -> AsyncIterator[Client]:
    """The client's snapshot, importable while the block runs. Outside a transaction of its own it gets a short one, ended on every path."""
    alone = session.transaction_status == b"I"
    statement = client_sql(names, functions, alone=alone)
    if not alone:
        yield read_client((await session.query(statement))[0], len(names))
        return
    try:
        yield read_client((await session.query(_BEGIN + statement))[0], len(names))
    finally:
        # Always: whoever was stopped while it waited does not know how far Postgres came.
        await session.query("rollback")


def check_client(client: Client, *, alone: bool) -> None:
    """Declined for whatever the lake would show differently than this session's own Postgres."""
    if client.has_written:
        raise Declined("the transaction has changes of its own, which only its session sees")
    if client.isolation == "serializable":
        raise Declined("SERIALIZABLE is watched over by Postgres alone")
    if client.shadows:
        raise Declined("functions or operators of the user's stand over built-in ones")
    if not all(client.readable):
        raise Declined("not a table that this role may read")
    if not alone and client.settings["max_prepared_transactions"] != "0":
        raise Declined("a transaction that may be prepared can't export its snapshot")
    wanted = {
        "DateStyle": client.settings["DateStyle"].startswith("ISO"),
        "IntervalStyle": client.settings["IntervalStyle"] == "postgres",
        "extra_float_digits": int(client.settings["extra_float_digits"]) >= 1,
        "bytea_output": client.settings["bytea_output"] == "hex",
        "client_encoding": client.settings["client_encoding"] == "UTF8",
        "standard_conforming_strings": client.settings["standard_conforming_strings"] == "on",
        "transform_null_equals": client.settings["transform_null_equals"] == "off",
    }
    odd = [name for name, fits in wanted.items() if not fits]
    if odd:
        raise Declined(f"{odd[0]} is {client.settings[odd[0]]}")
    if client.snapshot is None:
        raise Declined("no snapshot was exported")


def read_seams(reader: Reader, relations: Sequence[RegisteredRelation], user: str) -> dict[int, Seam]:
    """Every relation's seam in the reader's snapshot. Declined where a relation is not what it was taken for, or not for this user."""
    by_id = {relation.table_id: relation for relation in relations}
    views = ", ".join(f"({relation.table_id}, {relation.view_oid})" for relation in by_id.values())
    rows = reader.rows(
        f"with known as ({fingerprints_sql(list(by_id))}), views (table_id, view_oid) as (values {views}) "  # noqa: S608
        "select k.table_id::int8, k.fingerprint::text, c.tier_key_hi, c.lake_snapshot_id, c.lake_props ->> 'metadata_location', "
        "c.retention_line, (select count(*) from modak.delta d where d.table_id = k.table_id), "
        f"has_table_privilege({_literal(user)}::name, v.view_oid::oid, 'SELECT') "
        "from known k join modak.cutline c using (table_id) join views v using (table_id)"
    )
    found = {row[0]: row for row in rows}
    seams = {}
    for table_id, relation in by_id.items():
        row = found.get(table_id)
        if row is None or row[1] != relation.fingerprint:
            raise Declined(f"{relation.name} changed since it was last looked at")
        if not row[7]:
            raise Declined(f"not a table that this role may read: {relation.view}")
        seams[table_id] = Seam(relation, row[2], row[3], row[4] or "", row[5], row[6])
    return seams


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    """A string constant that reads the same whatever standard_conforming_strings says."""
    quoted = "'" + text.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in text else quoted
