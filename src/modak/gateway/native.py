"""Statements that only a table can do: ON CONFLICT, MERGE and row locks on a registered name are meant for its heap.

A view can do none of them (over UNION ALL a row lock silently locks nothing), so on the gateway's port the name is replaced by the
heap's, in the statement's own text and nowhere else. An alias keeps references by the old name valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from modak.core.table import Name
from modak.gateway.dialect.parse import quoted

Heap = Callable[[Sequence[str]], Name | None]

_WORTH_A_LOOK = re.compile(r"\bon\s+conflict\b|\bmerge\s+into\b|\bfor\s+(?:no\s+key\s+)?update\b|\bfor\s+(?:key\s+)?share\b", re.I)


def on_the_heap(sql: str, heap_of: Heap) -> str | None:
    """The text with the heap's name where a table is needed; None if there is nothing to replace. ``heap_of`` knows names by parts."""
    if not _WORTH_A_LOOK.search(sql):
        return None
    try:
        trees = sqlglot.parse(sql, read="postgres")
    except SqlglotError:
        return None
    places = sorted({place for tree in trees if tree is not None for place in _replacements(tree, heap_of)}, reverse=True)
    for start, end, text in places:
        sql = sql[:start] + text + sql[end:]
    return sql if places else None


def _replacements(tree: exp.Expr, heap_of: Heap) -> Iterator[tuple[int, int, str]]:
    for table in _targets(tree):
        name, schema = table.this, table.args.get("db")
        if not isinstance(name, exp.Identifier) or table.args.get("catalog"):
            continue
        heap = heap_of([_folded(part) for part in (schema, name) if isinstance(part, exp.Identifier)])
        start = (schema if isinstance(schema, exp.Identifier) else name).meta.get("start")
        if heap is None or start is None:
            continue
        alias = "" if table.alias else f" AS {quoted(_folded(name))}"
        yield int(start), int(name.meta["end"]) + 1, f"{quoted(heap.schema)}.{quoted(heap.name)}{alias}"


def _targets(tree: exp.Expr) -> Iterator[exp.Table]:
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


def _folded(name: exp.Identifier) -> str:
    text = str(name.this)
    return text if name.args.get("quoted") else text.lower()
