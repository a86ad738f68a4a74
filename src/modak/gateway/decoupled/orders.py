"""Orders of the SQL functions for decoupled tables, as describe, create, attach and drop. Each is part of the transaction that gives it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pyiceberg.table import Table

from modak.core.decoupled import Definition, differences
from modak.core.lake_table import default_ref
from modak.core.table import Name
from modak.errors import LakeTableExists, ModakError, NotFound, Refused
from modak.gateway.decoupled.world import World
from modak.gateway.wire.messages import ProtocolError
from modak.lake.decoupled import MODE_STAMP, found_in, is_registered
from modak.lake.iceberg import IcebergLake
from modak.lake.widening import widen

Request = Mapping[str, Any]
Answer = dict[str, Any]
_FORMAT_VERSION = 2
_DROP_SECONDS_MAX = 5.0
_POLL_SECONDS = 0.02
_ALONE = "add the column before anything else, or in a transaction of its own"


class TableInUse(ModakError):
    """What the transaction has begun with a table does not go with what it asks for now."""

    code = "table_in_use"
    sqlstate = "55006"


class Orders(Protocol):
    """What a lake transaction does for orders; nothing of it reaches the lake before the transaction commits."""

    @property
    def world(self) -> World: ...

    def lake(self, profile: str) -> IcebergLake: ...

    def create(self, definition: Definition) -> None: ...

    def attach(self, definition: Definition) -> None: ...

    def drop(self, table_id: int, ref: str, profile: str, purge: bool) -> None: ...

    def definition(self, table_id: int) -> Definition: ...

    def is_new(self, table_id: int) -> bool: ...

    def has_looked_at(self, table_id: int) -> bool: ...

    def claim(self, definition: Definition) -> None: ...

    def widen(self, definition: Definition) -> None: ...


def carry_out(verb: str, request: Request, transaction: Orders) -> Answer:
    """The answer to one order, as JSON."""
    known = _VERBS.get(verb)
    if known is None:
        raise ProtocolError(f"there is no order {verb!r}", known=", ".join(_VERBS))
    return known(request, transaction)


def _greet(_request: Request, _transaction: Orders) -> Answer:
    """That somebody answers is the answer."""
    return {}


def _create(request: Request, transaction: Orders) -> Answer:
    ref, there = _place(request, transaction.lake(str(request["profile"])))
    definition = Definition.parse({**request, "ref": ref, "is_attached": False})
    if there is not None:
        return _join(definition, there, transaction)
    transaction.create(definition)
    return definition.as_json()


def _place(request: Request, lake: IcebergLake) -> tuple[str, Table | None]:
    """The name of a new table in the lake, its own unless a table that is gone from here has that still; and the table that has it."""
    ref = str(request.get("ref") or default_ref(Name(str(request["schema"]), str(request["name"]))))
    dropping, until = ref in (request.get("dropping") or ()), time.monotonic() + _DROP_SECONDS_MAX
    while (found := lake.find_table(ref)) is not None and dropping and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    if found is None or (not dropping and ref not in (request.get("replaced") or ())):
        return ref, found
    # Its rows are somebody's still, or the transaction that drops it is this one.
    return f"{ref}_{uuid.uuid4().hex[:8]}", None


def _join(definition: Definition, table: Table, transaction: Orders) -> Answer:
    """Another node has made this very table: it is this one's too. Anything else of that name is nobody's to take without a word."""
    ref, hint = definition.ref, "use it by modak.attach_iceberg_table('{0.schema}', '{0.name}', '{1}'), or take another name"
    if table.properties.get(MODE_STAMP) != "decoupled":
        different = ["Modak did not make it"]
    elif not transaction.world.settled.is_certain(table):
        raise LakeTableExists(f"lake table {ref} is of a transaction that may yet be taken back", hint="try again in a moment")
    else:
        different = _differences(definition, table)
    if different:
        told = "; ".join(different)
        raise LakeTableExists(f"lake table {ref} exists already, and is another one: {told}", hint=hint.format(definition.name, ref))
    joined = replace(definition, is_attached=True, uuid=str(table.metadata.table_uuid))
    transaction.attach(joined)
    return {
        **joined.as_json(),
        "notices": [f"lake table {ref} is there already, with the same columns: table {definition.name} is attached to it"],
    }


def _differences(definition: Definition, table: Table) -> list[str]:
    if table.metadata.format_version != _FORMAT_VERSION:
        return [f"it has Iceberg's format {table.metadata.format_version}"]
    try:
        found = found_in(table)
    except Refused as refused:
        return [problem.message for problem in refused.problems]
    there = {**definition.as_json(), "columns": found.columns, "partition_by": found.partition_by, "is_attached": True}
    return differences(definition, Definition.parse(there))


def _compare(request: Request, transaction: Orders) -> Answer:
    """In what a table that is wanted differs from the lake table of an attached one."""
    table = _load(transaction, str(request["profile"]), str(request["ref"]))
    return {"differences": _differences(Definition.parse({**request, "is_attached": False}), table)}


def _describe(request: Request, transaction: Orders) -> Answer:
    table = _load(transaction, str(request["profile"]), str(request["ref"]))
    found = found_in(table)
    return {"columns": found.columns, "partition_by": found.partition_by, "notices": found.notices}


def _list(request: Request, transaction: Orders) -> Answer:
    """The tables of a namespace, and why one cannot be attached. Those that hold cold rows of registered tables are not among them."""
    lake = transaction.lake(str(request["profile"]))
    tables = []
    for ref in lake.refs(str(request["namespace"])):
        try:
            table = _load(transaction, str(request["profile"]), ref)
            if is_registered(table.properties):
                continue
            found_in(table)
            problem = None
        except NotFound:
            continue
        except ModakError as cause:
            problem = "; ".join([cause.message, *(one.message for one in getattr(cause, "problems", ()))])
        tables.append({"ref": ref, "name": ref.split(".", 1)[1], "problem": problem})
    return {"tables": tables}


def _attach(request: Request, transaction: Orders) -> Answer:
    """The columns come from describe, of the same transaction; the lake is looked at once more, for the two are two looks."""
    table = _load(transaction, str(request["profile"]), str(request["ref"]))
    told = {"partition_by": found_in(table).partition_by, "is_attached": True, "uuid": str(table.metadata.table_uuid)}
    definition = Definition.parse({**request, **told})
    fields = [(field.field_id, str(field.field_type).replace(" ", "")) for field in table.schema().fields]
    if fields != [(column.field_id, column.lake.iceberg) for column in definition.columns]:
        raise Refused(f"lake table {request['ref']} was changed while it was attached", hint="try again")
    transaction.attach(definition)
    return definition.as_json()


def _drop(request: Request, transaction: Orders) -> Answer:
    purge = bool(request.get("purge"))
    # One that was attached is only let go of: what this transaction wrote to it stays written.
    if purge or not request.get("is_attached"):
        if purge:
            transaction.lake(str(request["profile"])).check_purge(str(request["ref"]))
        transaction.drop(int(request["table_id"]), str(request["ref"]), str(request["profile"]), purge)
    return {}


def _widen(request: Request, transaction: Orders) -> Answer:
    """One more column. The lake has it at once, whatever becomes of the transaction: nobody else is shown it, and it is found again."""
    table_id = int(request["table_id"])
    definition = transaction.definition(table_id)
    if transaction.is_new(table_id) or transaction.has_looked_at(table_id):
        how = "makes it" if transaction.is_new(table_id) else "has read it or written to it"
        raise TableInUse(f"table {definition.name} cannot be given a column by a transaction that {how}", hint=_ALONE)
    transaction.claim(definition)
    column, notices = widen(transaction.lake(definition.profile), definition, request["column"])
    transaction.widen(replace(definition, columns=(*definition.columns, column)))
    return {"column": column.as_json(), "notices": notices}


_VERBS: Mapping[str, Callable[[Request, Orders], Answer]] = {
    "greet": _greet,
    "create": _create,
    "compare": _compare,
    "describe": _describe,
    "list": _list,
    "attach": _attach,
    "drop": _drop,
    "widen": _widen,
}


def _load(transaction: Orders, profile: str, ref: str) -> Table:
    table = transaction.lake(profile).find_table(ref)
    if table is None:
        raise NotFound(f"there is no lake table {ref}", hint="give it as namespace.table of the profile's Iceberg catalog", profile=profile)
    version = table.metadata.format_version
    if version != _FORMAT_VERSION:
        # Format 1 has no deletes of rows.
        hint = f"set its property format-version to {_FORMAT_VERSION}, which any engine does in place, and attach it again"
        raise Refused(
            f"lake table {ref} has Iceberg's format {version}",
            hint=hint if version < _FORMAT_VERSION else f"only format {_FORMAT_VERSION} can be attached",
        )
    return table
