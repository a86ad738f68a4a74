"""A statement written anew, for a session that may do more than whoever wrote it.

The session's search path holds built-in things only, so no name reaches anything else unless it is written in full, and none is let through
but those of ``pg_catalog`` and of the relations themselves. It is written from the tree, because Postgres must not read in a text what the
tree does not show; and whatever the writer would copy into its text unquoted is looked at once more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from modak.gateway.analytics.relations import RegisteredRelation
from modak.gateway.analytics.seam import Declined
from modak.gateway.analytics.statement import Candidate, base_tables, rename
from modak.gateway.dialect.parse import StrictPostgres, identifier, literal_text

_WORDS = re.compile(r"[A-Za-z0-9_ ]*")
_NUMBER = re.compile(r"[0-9.]+(?:[eE][+-]?[0-9]+)?")


def in_full(candidate: Candidate, relations: Sequence[RegisteredRelation]) -> str:
    """Each relation's view by its full name. ``relations`` stand in the order of ``base_tables``. Declined where it names anything else."""
    copy = candidate.tree.copy()
    for table, relation in zip(base_tables(copy), relations, strict=True):
        rename(table, relation.view.name)
        table.set("db", exp.to_identifier(relation.view.schema, quoted=True))
    for node in list(copy.walk()):
        _check(node)
        if isinstance(node, exp.Identifier):
            node.replace(exp.to_identifier(identifier(node), quoted=True))
        elif isinstance(node, exp.ByteString | exp.RawString):
            # What its escapes stand for, so that there are none to be read in another way.
            node.replace(exp.Literal.string(literal_text(node) or ""))
    return copy.sql(StrictPostgres, comments=False, normalize_functions=False)


def _check(node: exp.Expr) -> None:
    if isinstance(node, exp.Operator):
        raise Declined("an operator by its schema's name")
    if isinstance(node, exp.Dot) and not (isinstance(node.this, exp.Identifier) and identifier(node.this) == "pg_catalog"):
        raise Declined("a function or a type by its schema's name")
    if isinstance(node, exp.Literal):
        if not node.is_string and not _NUMBER.fullmatch(str(node.this)):
            raise Declined(f"the number {str(node.this)[:40]}")
    elif not isinstance(node, exp.Identifier | exp.ByteString | exp.RawString):
        for value in node.args.values():
            if any(isinstance(one, str) and not _WORDS.fullmatch(one) for one in (value if isinstance(value, list) else [value])):
                raise Declined(f"{type(node).__name__} with something else than words")
