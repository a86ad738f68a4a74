"""From a statement to the engine's SQL, before any row is read: Postgres's description of the result must agree with ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from modak.core.type_map import PgType
from modak.gateway.analytics.relations import RegisteredRelation
from modak.gateway.analytics.seam import Declined
from modak.gateway.analytics.statement import Use, taken_apart
from modak.gateway.dialect.errors import Untranslatable
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.query import Catalog, CatalogRelation, TranslatedQuery, translate_query
from modak.gateway.dialect.scope import Scope
from modak.gateway.dialect.types import SqlType
from modak.gateway.wire.cells import Unsupported
from modak.gateway.wire.messages import FieldDescription
from modak.gateway.wire.rows import BINARY_TYPES, TEXT, ColumnFormat
from modak.scan.sqltext import quoted

_OIDS: Mapping[str, int] = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "oid": 26,
    "float4": 700,
    "float8": 701,
    "bpchar": 1042,
    "varchar": 1043,
    "date": 1082,
    "timestamp": 1114,
    "timestamptz": 1184,
    "numeric": 1700,
    "uuid": 2950,
}
# Text compares in the lake by its bytes: equal is equal under every deterministic collation, and order is checked by the translator.
_PLAIN_COLLATIONS = frozenset({"default", "C", "POSIX", "ucs_basic", "C.UTF-8", "C.utf8", "pg_c_utf8"})
_STRINGS = ("text", "varchar", "bpchar", "enum", "unknown")


@dataclass(frozen=True)
class Plan:
    """A translated statement. Its SQL reads from ``uses`` by their names; ``certain`` if no row can need Postgres after all."""

    sql: str
    types: tuple[SqlType, ...]
    fields: tuple[FieldDescription, ...]
    uses: tuple[Use, ...]
    timezone: str
    certain: bool

    def outputs(self, formats: Callable[[int], int]) -> tuple[str, list[ColumnFormat]]:
        """The SELECT list over the statement's columns in the formats asked for, and how each goes out."""
        items, forms = [], []
        for number, of in enumerate(self.types):
            name = f'"c{number + 1}"'
            if formats(number) == 0:
                items.append(f"{text_sql(name, of, self.timezone)} AS {name}")
                forms.append(TEXT)
                continue
            forms.append(ColumnFormat(_binary_form(of)))
            items.append(f"{text_sql(name, of, self.timezone)} AS {name}" if of.name in _STRINGS else name)
        return ", ".join(items), forms

    def described(self, fields: Sequence[FieldDescription]) -> Plan:
        """The plan with what Postgres said of its result after it was made. Declined if that is not what it gives."""
        _check_fields(self.types, fields)
        return replace(self, fields=tuple(fields))

    def check_text(self) -> None:
        """Declined if some column has no text that equals Postgres's in this session."""
        for of in self.types:
            text_sql("x", of, self.timezone)


def _binary_form(of: SqlType) -> str:
    if of.name in _STRINGS:
        return "text"
    form = (
        of.pg.base if of.name == "opaque" and of.pg is not None and of.pg.base in ("json", "jsonb") and of.pg.element is None else of.name
    )
    if form not in BINARY_TYPES or (of.name == "numeric" and of.digits is None):
        raise Unsupported("no binary form for this column here", type=of.pg.display if of.pg is not None else of.name)
    return form


def plan(
    tree: exp.Expr,
    relations: Sequence[RegisteredRelation],
    fields: Sequence[FieldDescription] | None,
    *,
    timezone: str,
    now: str,
    collation_is_c: bool,
) -> Plan:
    """``tree`` without parameters; ``relations`` in the order of its base tables; ``fields`` as Postgres described the result,
    or None: then the plan is good only once it was ``described``.

    Raises Declined or Untranslatable for whatever is not certain to be answered as Postgres would.
    """
    for relation in relations:
        if relation.problem is not None:
            raise Declined(f"{relation.name}: {relation.problem}")
    named, uses = taken_apart(tree, relations, timezone)
    _check_collations(uses)
    _check_types(uses)
    session = Scope(collation_is_c=collation_is_c, timezone=timezone, now=now, may_fail_over=False)
    translated, certain = _translated(named, uses, session)
    types = tuple(of for _, of in translated.columns)
    if fields is not None:
        _check_fields(types, fields)
    found = Plan(translated.sql, types, tuple(fields or ()), uses, timezone, certain)
    found.check_text()
    return found


def _translated(tree: exp.Expr, uses: Sequence[Use], session: Scope) -> tuple[TranslatedQuery, bool]:
    known = {use.name: CatalogRelation(use.name, quoted(use.name), use.relation.types, use.relation.name.schema) for use in uses}

    def resolve(schema: str | None, name: str) -> CatalogRelation | None:
        return known.get(name) if schema is None else None

    try:
        return translate_query(tree, Catalog(resolve, session)), True
    except Untranslatable:
        # Perhaps only because some rows may need Postgres; then nothing is sent before all rows are known not to.
        return translate_query(tree, Catalog(resolve, _failing_over(session))), False


def _failing_over(session: Scope) -> Scope:
    return Scope(collation_is_c=session.collation_is_c, timezone=session.timezone, now=session.now, may_fail_over=True)


def _check_collations(uses: Sequence[Use]) -> None:
    for use in uses:
        for column in use.relation.columns:
            if column.name in use.columns and column.collation is not None and column.collation[1] not in _PLAIN_COLLATIONS:
                raise Declined(f"column {column.name} has collation {column.collation[1]}")


def _check_types(uses: Sequence[Use]) -> None:
    """Hot rows and corrections are read by sessions that may do more than the type's owner: what he wrote must not run there."""
    for use in uses:
        for column in use.relation.columns:
            if column.name in (*use.columns, *use.relation.primary_key) and not _is_without_code(column.pg):
                raise Declined(f"column {column.name} is of type {column.pg.display}, which may run code of its owner's")


def _is_without_code(of: PgType) -> bool:
    """Base types are made by superusers, and enums are lists. Ranges may have a function, rows and arrays may hold domains with one."""
    if of.namespace == "pg_catalog":
        return True
    if of.element is not None:
        # Under another name than its element's type, which is what lies under the domains: an array of a domain.
        return of.base == f"_{of.element.base}" and _is_without_code(of.element)
    return of.kind in ("b", "e")


def _check_fields(types: Sequence[SqlType], fields: Sequence[FieldDescription]) -> None:
    """Postgres's columns are what the client gets told; ours must be those."""
    if len(types) != len(fields):
        raise Declined(f"{len(fields)} columns to Postgres, {len(types)} here")
    for of, column in zip(types, fields, strict=True):
        wanted = _OIDS.get(of.name, column.type_oid)
        if wanted != column.type_oid or (of.name == "bpchar" and of.modifier != column.typmod):
            raise Declined(f"column {column.name} has type {column.type_oid} to Postgres and is {of.name} here")
