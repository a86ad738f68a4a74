"""Names on the gateway's port that mean another relation than in Postgres, replaced in the statement's own text and nowhere else.

ON CONFLICT, MERGE and row locks need a table: on a registered name they are meant for its heap (over UNION ALL a row lock silently locks
nothing). And where the heap kept the plain name, a SELECT by that name means both tiers here, so it goes to the view.
An alias keeps references by the old name valid. What a name means is asked of Postgres, by its OID: a search path or a temporary table
may stand before ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from modak.core.table import Name
from modak.gateway.analytics.relations import RegisteredRelation, Relations
from modak.gateway.dialect.parse import identifier
from modak.scan.sqltext import quoted

Parts = tuple[str, ...]
Meaning = Callable[[Parts], Name | None]

_NEEDS_A_TABLE = re.compile(r"\bon\s+conflict\b|\bmerge\s+into\b|\bfor\s+(?:no\s+key\s+)?update\b|\bfor\s+(?:key\s+)?share\b", re.I)
_READS = re.compile(r"\s*(?:select|with|table|\()", re.I)


def on_the_heap(sql: str, heap_of: Meaning) -> str | None:
    """The text with the heap's name where a table is needed; None if there is nothing to replace."""
    return _replaced(sql, _need_a_table, heap_of) if _NEEDS_A_TABLE.search(sql) else None


def through_the_view(sql: str, view_of: Meaning) -> str | None:
    """The text of a plain SELECT with the view's name for a heap's; None if there is nothing to replace."""
    return _replaced(sql, _are_read, view_of) if _READS.match(sql) and not _NEEDS_A_TABLE.search(sql) else None


def _replaced(sql: str, targets: Callable[[exp.Expr], Iterator[exp.Table]], meaning: Meaning) -> str | None:
    try:
        trees = sqlglot.parse(sql, read="postgres")
    except SqlglotError:
        return None
    tables = [table for tree in trees if tree is not None for table in targets(tree)]
    places = sorted({place for table in tables for place in _replacement(table, meaning)}, reverse=True)
    for start, end, text in places:
        sql = sql[:start] + text + sql[end:]
    return sql if places else None


def _replacement(table: exp.Table, meaning: Meaning) -> Iterator[tuple[int, int, str]]:
    name, schema = table.this, table.args.get("db")
    if not isinstance(name, exp.Identifier) or table.args.get("catalog"):
        return
    found = meaning(tuple(identifier(part) for part in (schema, name) if isinstance(part, exp.Identifier)))
    start = (schema if isinstance(schema, exp.Identifier) else name).meta.get("start")
    if found is not None and start is not None:
        alias = "" if table.alias else f" AS {quoted(identifier(name))}"
        yield int(start), int(name.meta["end"]) + 1, f"{quoted(found.schema)}.{quoted(found.name)}{alias}"


def _need_a_table(tree: exp.Expr) -> Iterator[exp.Table]:
    for insert in tree.find_all(exp.Insert):
        if insert.args.get("conflict"):
            target = insert.this.this if isinstance(insert.this, exp.Schema) else insert.this
            if isinstance(target, exp.Table):
                yield target
    for merge in tree.find_all(exp.Merge):
        if isinstance(merge.this, exp.Table):
            yield merge.this
    for select in tree.find_all(exp.Select):
        if select.args.get("locks"):
            sources = [select.args.get("from_"), *select.args.get("joins", [])]
            yield from (source.this for source in sources if source is not None and isinstance(source.this, exp.Table))


def _are_read(tree: exp.Expr) -> Iterator[exp.Table]:
    if not isinstance(tree, exp.Query) or tree.find(exp.Insert, exp.Update, exp.Delete, exp.Merge):
        return
    shadowed = {identifier(cte.args["alias"].this) for cte in tree.find_all(exp.CTE) if isinstance(cte.args["alias"].this, exp.Identifier)}
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier) and (table.args.get("db") or identifier(table.this) not in shadowed):
            yield table


class Rewriter:
    """Two steps, because only the client's own session knows what its names mean: which names to ask about, and then the new text."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations

    def names(self, sql: str) -> Sequence[Parts]:
        """Names in the statement that may have to be replaced; quick for the many statements without any."""
        two_tier = self._two_tier()
        known = {name for relation in two_tier for name in (relation.name.name, relation.view.name)}
        heaps = {relation.heap.name for relation in two_tier if relation.surface == "heap"}
        found: dict[Parts, None] = {}

        def note(parts: Parts, among: set[str]) -> None:
            if parts[-1] in among:
                found[parts] = None

        if _NEEDS_A_TABLE.search(sql) and any(name in sql for name in known):
            on_the_heap(sql, lambda parts: note(parts, known))
        elif heaps and any(name in sql for name in heaps):
            through_the_view(sql, lambda parts: note(parts, heaps))
        return list(found)

    def rewritten(self, sql: str, oids: Mapping[Parts, int | None]) -> str:
        """The statement as Postgres is to get it, given what its names mean there."""
        heaps = {relation.view_oid: relation.heap for relation in self._two_tier()}
        views = {relation.table_id: relation.view for relation in self._two_tier() if relation.surface == "heap"}
        on_heap = on_the_heap(sql, lambda parts: heaps.get(oids.get(parts) or 0))
        return on_heap or through_the_view(sql, lambda parts: views.get(oids.get(parts) or 0)) or sql

    def _two_tier(self) -> list[RegisteredRelation]:
        """A mirror that is whole in Postgres has one name and one meaning."""
        return [relation for relation in self._relations.all() if not relation.is_mirror]
