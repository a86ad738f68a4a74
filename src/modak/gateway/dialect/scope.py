"""What an expression may refer to, and what it is evaluated under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from modak.gateway.dialect.errors import NEEDS_POSTGRES, Untranslatable
from modak.gateway.dialect.types import SqlType, column_type
from modak.scan.predicate import Columns
from modak.scan.sqltext import quoted

# Every table has these in Postgres and none in the lake.
SYSTEM_COLUMNS = frozenset({"ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"})


@dataclass(frozen=True)
class Unchecked:
    """A tree of float operations without its checks: what it computes, what must not be zero for it to stand, and the careful way."""

    sql: str
    nonzero: tuple[str, ...]
    careful: str


@dataclass(frozen=True)
class Typed:
    """An expression in DuckDB's SQL with the type Postgres gives it.

    ``text`` is a constant's text, as written; ``null`` marks the bare NULL. ``scale`` is SQL for the display scale of a numeric whose
    values do not all share the one of its type, as in ``coalesce(price, 0)``.
    """

    sql: str
    type: SqlType
    text: str | None = None
    null: bool = False
    scale: str | None = None
    unchecked: Unchecked | None = None

    @property
    def unknown(self) -> bool:
        return self.type.name == "unknown"


def guarded(sql: str) -> str:
    """A value whose computation may fail. least() of one value changes nothing, and the optimiser neither moves constants over it
    (``a + 1 > 5`` is not ``a > 4`` when a + 1 overflows) nor drops a narrowing cast below it."""
    return f"least({sql})"


@dataclass(frozen=True)
class Relation:
    """A name in FROM with its columns, in order."""

    alias: str
    columns: Mapping[str, Typed]
    schema: str | None = None


Visit = Callable[[exp.Expr], Typed]
Subquery = Callable[[exp.Expr, "Scope"], tuple[str, list[SqlType]]]
Call = Callable[[exp.Expr, "Scope"], Typed | None]


@dataclass(frozen=True)
class Scope:
    """The relations an expression sees and the session it runs in.

    ``collation_is_c``: the database orders text by bytes. ``now``: the transaction's time as timestamptz text, None where it is not known.
    ``parameters``: number → (text or None, type). ``enum_labels``: labels by the enum's displayed name, to refuse what Postgres would;
    None trusts them. ``may_fail_over``: whoever runs the SQL goes to Postgres when DuckDB meets a limit at run time (RuntimeProblem
    without an SQLSTATE); False refuses whatever could.
    """

    relations: tuple[Relation, ...] = ()
    collation_is_c: bool = False
    timezone: str = "UTC"
    now: str | None = None
    parameters: Mapping[int, tuple[str | None, SqlType]] = field(default_factory=dict)
    enum_labels: Mapping[str, frozenset[str]] | None = None
    may_fail_over: bool = True
    merged: Mapping[str, Typed] = field(default_factory=dict)
    outer: Scope | None = None
    subquery: Subquery | None = None
    call: Call | None = None

    @staticmethod
    def of_table(
        columns: Columns, *, alias: str | None = None, schema: str | None = None, table: str | None = None, **session: object
    ) -> Scope:
        """One registered table whose DuckDB columns bear the names of the Postgres ones; ``alias`` or ``table`` may qualify them."""
        prefix = f"{quoted(alias)}." if alias else ""
        typed = {name: Typed(prefix + quoted(name), column_type(column)) for name, column in columns.items()}
        relation = Relation(alias or table or "", typed, None if alias else schema)
        return replace(Scope(relations=(relation,)), **session)  # type: ignore[arg-type]

    def column(self, name: str, table: str | None = None, schema: str | None = None) -> Typed:
        """The one column a reference means; an unqualified one found nowhere here is looked for outside."""
        if table is None and name in self.merged:
            return self.merged[name]
        found = [
            relation.columns[name]
            for relation in self.relations
            if name in relation.columns and table in (None, relation.alias) and schema in (None, relation.schema)
        ]
        if len(found) > 1:
            raise Untranslatable(f"column {name} is ambiguous")
        if found:
            return found[0]
        if name in SYSTEM_COLUMNS:
            raise Untranslatable(f"system column {name}")
        if self.outer is None:
            raise Untranslatable(f"no column {name}")
        return self.outer.column(name, table, schema)

    def fail_over(self, reason: str) -> str:
        """SQL that ends the query at run time because this row needs Postgres."""
        if not self.may_fail_over:
            raise Untranslatable(reason)
        return f"error('{NEEDS_POSTGRES}: {reason}')"


@dataclass(frozen=True)
class At:
    """Where a translation stands: a node, what it sees, and the way to translate its children."""

    node: exp.Expr
    scope: Scope
    visit: Visit


Handler = Callable[[At], Typed]
Handlers = dict[type[exp.Expr], Handler]
