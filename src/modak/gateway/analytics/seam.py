"""One seam for all relations of a query: a snapshot that is right for this client, and what the catalog says in it.

The client's session tells who asks and under which settings; it needs no rights on the catalog for that. The session of who asks by
``modak.query`` is out of reach: there one of ours answers for him. Where each statement has a snapshot of its own, and nothing is written
yet, any snapshot taken now is right, and a reader of the gateway's takes one. A REPEATABLE READ transaction has its own, which it exports
once. T, S and the state of the delta are then read in that snapshot, as the view would. SERIALIZABLE is Postgres's alone, which must see
what a transaction reads, except READ ONLY DEFERRABLE: that one has waited for a snapshot in which nothing it reads can matter to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from modak.core.tier_key import KEY_MAX
from modak.gateway.analytics import mirrors
from modak.gateway.analytics.reader import Reader
from modak.gateway.analytics.relations import RegisteredRelation, fingerprints_sql
from modak.gateway.interception import Caller, ClientSession
from modak.scan.sqltext import quoted, string

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
    "transaction_isolation",
    "default_transaction_isolation",
)


class Declined(Exception):
    """This statement is Postgres's to answer, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Stale(Declined):
    """A relation is not any more what it was taken for; looked at again, it may well be the lake's to answer."""


class Behind(Stale):
    """The lake was far enough, and the tables have parted since; they may well meet again. ``is_told``: the client wants to know."""

    def __init__(self, *, is_told: bool) -> None:
        super().__init__("the lake is behind")
        self.is_told = is_told


@dataclass(frozen=True)
class Client:
    """What the client's session said of itself. ``server`` tells one running server and database from every other; ``wanted_lsn``: no
    moment of mirrored tables before it will do."""

    server: str
    has_written: bool
    user: str
    now_micros: int
    shadows: bool
    settings: dict[str, str]
    oids: tuple[int | None, ...]
    readable: tuple[bool, ...]
    snapshot: str | None
    reads: str = ""
    wait: str = ""
    wants_notices: bool = True
    wanted_lsn: int | None = None


@dataclass(frozen=True)
class Seam:
    """A relation's seam: T, S with its metadata file, R, and how many corrections there are. ``notice`` is for the client to know."""

    relation: RegisteredRelation
    tier_key_hi: int
    sequence_number: int | None
    metadata_location: str
    retention_line: int | None
    delta_rows: int
    notice: str | None = None


# Operators too by their full names: these run in sessions whose search paths are other people's.
_EQUALS, _DIFFERS = "operator(pg_catalog.=)", "operator(pg_catalog.<>)"
_SERVER = "pg_catalog.concat_ws(' ', pg_catalog.pg_postmaster_start_time() at time zone 'UTC', pg_catalog.current_database())"
_NOW = "(extract(epoch from pg_catalog.transaction_timestamp()) operator(pg_catalog.*) 1000000)::pg_catalog.int8"
_WRITTEN = "pg_catalog.pg_current_xact_id_if_assigned() is not null"
_READ_ONLY = f"pg_catalog.current_setting('transaction_read_only') {_EQUALS} 'on'"
# A whole transaction at one snapshot that nobody watches over.
_STEADY = (
    f"(pg_catalog.current_setting('transaction_isolation') {_EQUALS} 'repeatable read' or "
    f"(pg_catalog.current_setting('transaction_isolation') {_EQUALS} 'serializable' and {_READ_ONLY} "
    f"and pg_catalog.current_setting('transaction_deferrable') {_EQUALS} 'on'))"
)
# Not where it may be prepared: Postgres refuses that to a transaction which has exported its snapshot.
_EXPORT = (
    f"case when {_STEADY} and not {_WRITTEN} and "
    f"({_READ_ONLY} or pg_catalog.current_setting('max_prepared_transactions') {_EQUALS} '0') "
    "then pg_catalog.pg_export_snapshot() end"
)


def client_sql(names: Sequence[Sequence[str]], functions: Sequence[str], *, may_export: bool) -> str:
    """The one statement asked of a client's session. ``may_export``: it is in a transaction block, and surely in no savepoint."""
    relations = [f"pg_catalog.to_regclass({_literal('.'.join(map(quoted, name)))})" for name in names]
    items = [
        _SERVER,
        _WRITTEN,
        "current_user",
        _NOW,
        _shadows_sql(functions, "pg_catalog.current_schemas(true)"),
        *(f"pg_catalog.current_setting('{name}')" for name in _SETTINGS),
        *(f"{relation}::pg_catalog.oid::pg_catalog.int8" for relation in relations),
        *(f"pg_catalog.has_table_privilege({relation}::pg_catalog.oid, 'SELECT')" for relation in relations),
        _EXPORT if may_export else "null",
        "pg_catalog.current_setting('modak.mirrored_reads', true)",
        "pg_catalog.current_setting('modak.mirrored_wait', true)",
        f"pg_catalog.current_setting('client_min_messages') {_DIFFERS} all (array['warning', 'error'])",
    ]
    return "select " + ", ".join(items)


def caller_sql(caller: Caller, names: Sequence[Sequence[str]], functions: Sequence[str]) -> str:
    """The same columns about somebody whom a session of ours stands for. Who he is and where he looks are values, nothing runs as him."""
    role = f"{_literal(caller.role)}::pg_catalog.name"
    relations = [_found_sql(caller, role, name) for name in names]
    items = [
        _SERVER,
        "false",
        role,
        _NOW,
        _shadows_sql(functions, _names(caller.schemas)),
        *(f"pg_catalog.current_setting('{name}')" for name in _SETTINGS),
        *(f"{relation}::pg_catalog.int8" for relation in relations),
        *(f"pg_catalog.has_table_privilege({role}, {relation}, 'SELECT')" for relation in relations),
        "null",
        _literal(caller.reads),
        _literal(caller.wait),
        "true",
    ]
    return "select " + ", ".join(items)


def _found_sql(caller: Caller, role: str, name: Sequence[str]) -> str:
    """The OID of a relation that the caller's path finds under this name; a schema that is closed to him counts as not there."""
    schemas = _names(name[-2:-1] or caller.schemas)
    here = f" and pg_catalog.current_database() {_EQUALS} {_literal(name[-3])}" if len(name) > 2 else ""
    return (
        f"(select c.oid from pg_catalog.unnest({schemas}) with ordinality p(name, place) "  # noqa: S608
        f"join pg_catalog.pg_namespace s on s.nspname {_EQUALS} p.name join pg_catalog.pg_class c on c.relnamespace {_EQUALS} s.oid "
        f"where c.relname {_EQUALS} {_literal(name[-1])} and pg_catalog.has_schema_privilege({role}, s.oid, 'USAGE'){here} "
        "order by p.place limit 1)"
    )


def _names(names: Sequence[str]) -> str:
    return f"array[{', '.join(map(_literal, names))}]::pg_catalog.name[]"


def _shadows_sql(functions: Sequence[str], schemas: str) -> str:
    """Whether somebody put functions or operators of his own over built-in types where this session would find them."""
    others = f"n.nspname {_EQUALS} any ({schemas}) and n.nspname {_DIFFERS} 'pg_catalog'"
    path = f"array(select n.oid from pg_catalog.pg_namespace n where {others})"  # noqa: S608
    own = "operator(pg_catalog.>=) 16384"
    return (
        f"exists (select from pg_catalog.pg_proc f where f.proname {_EQUALS} any ({_names(functions)}) "  # noqa: S608
        f"and f.pronamespace {_EQUALS} any ({path})"
        f" and not exists (select from pg_catalog.unnest(f.proargtypes::pg_catalog.oid[]) as a where a {own}))"
        f" or exists (select from pg_catalog.pg_operator o where o.oid {own} and o.oprnamespace {_EQUALS} any ({path})"
        f" and not o.oprleft {own} and not o.oprright {own})"
    )


def read_client(row: Sequence[str | None], count: int) -> Client:
    """The answer to ``client_sql`` for ``count`` names."""
    server, written, user, now, shadows, *rest = row
    settings, rest = rest[: len(_SETTINGS)], rest[len(_SETTINGS) :]
    return Client(
        server=server or "",
        has_written=written == "t",
        user=user or "",
        now_micros=int(now or 0),
        shadows=shadows != "f",
        settings={name: value or "" for name, value in zip(_SETTINGS, settings, strict=True)},
        oids=tuple(int(oid) if oid is not None else None for oid in rest[:count]),
        readable=tuple(text == "t" for text in rest[count : 2 * count]),
        snapshot=rest[2 * count],
        reads=(rest[2 * count + 1] or "").lower(),
        wait=rest[2 * count + 2] or "",
        wants_notices=rest[2 * count + 3] != "f",
    )


async def ask_client(session: ClientSession, names: Sequence[Sequence[str]], functions: Sequence[str]) -> Client:
    """Declined for whatever the lake would show differently than this session's own Postgres."""
    in_block = session.transaction_status == b"T"
    # In a savepoint the export would be an error, and that error the end of the client's transaction.
    may_export = in_block and not session.in_savepoint and session.exported is None
    caller = session.stands_for
    asked = client_sql(names, functions, may_export=may_export) if caller is None else caller_sql(caller, names, functions)
    client = read_client((await session.query(asked))[0], len(names))
    if in_block:
        # One export serves the whole transaction: its snapshot stays the same.
        session.exported = client.snapshot or session.exported
        client = replace(client, snapshot=session.exported)
    _check_isolation(client, in_block)
    if client.shadows:
        raise Declined("functions or operators of the user's stand over built-in ones")
    if not all(client.readable):
        raise Declined("not a table that this role may read")
    _check_settings(client)
    return client


def _check_isolation(client: Client, in_block: bool) -> None:
    isolation = client.settings["transaction_isolation" if in_block else "default_transaction_isolation"]
    if client.has_written:
        raise Declined("the transaction has changes of its own, which only its session sees")
    if isolation == "serializable" and client.snapshot is None:
        raise Declined("SERIALIZABLE is watched over by Postgres alone, unless it is READ ONLY DEFERRABLE")
    if in_block and isolation == "repeatable read" and client.snapshot is None:
        raise Declined("a REPEATABLE READ transaction that may not export its snapshot: it is in a savepoint, or may be prepared")


def _check_settings(client: Client) -> None:
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


def read_seams(reader: Reader, relations: Sequence[RegisteredRelation], client: Client) -> dict[int, Seam]:
    """Every relation's seam in the reader's snapshot. Declined where a relation is not what it was taken for, or not for this client."""
    by_id = {relation.table_id: relation for relation in relations}
    views = ", ".join(f"({relation.table_id}, {relation.view_oid})" for relation in by_id.values())
    rows = reader.planned_rows(
        f"with known as ({fingerprints_sql(list(by_id))}), views (table_id, view_oid) as (values {views}) "  # noqa: S608
        "select k.table_id::int8, k.fingerprint::text, c.tier_key_hi, c.lake_snapshot_id, c.lake_props ->> 'metadata_location', "
        "c.retention_line, (select count(*) from modak.delta d where d.table_id = k.table_id), "
        f"has_table_privilege({_literal(client.user)}::name, v.view_oid::oid, 'SELECT'), {_SERVER} "
        "from known k join modak.cutline c using (table_id) join views v using (table_id)"
    )
    found = {row[0]: row for row in rows}
    copies = [relation for relation in by_id.values() if relation.is_mirror]
    moment = mirrors.read_moment(reader, copies) if copies else {}
    if len(moment) < len(copies):
        raise Declined("the lake has no moment that the tables have in common")
    if client.wanted_lsn is not None and any(at.lsn < client.wanted_lsn for at in moment.values()):
        raise Behind(is_told=client.wants_notices)
    seams = {}
    for table_id, relation in by_id.items():
        row = found.get(table_id)
        if row is None or row[1] != relation.fingerprint:
            raise Stale(f"{relation.name} changed since it was last looked at")
        if row[8] != client.server:
            raise Declined("the client is on another server or database than the gateway")
        if not row[7]:
            raise Declined(f"not a table that this role may read: {relation.view}")
        seams[table_id] = Seam(relation, row[2], row[3], row[4] or "", row[5], row[6])
        if relation.is_mirror:
            # All of it is the lake's.
            at = moment[table_id]
            notice = mirrors.told(at, copies)
            seams[table_id] = Seam(relation, KEY_MAX, at.sequence_number, at.metadata_location, None, 0, notice)
    return seams


def _literal(text: str) -> str:
    """A string constant that reads the same whatever standard_conforming_strings says."""
    return "E" + string(text).replace("\\", "\\\\") if "\\" in text else string(text)
