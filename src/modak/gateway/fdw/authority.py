"""Who may give orders, and ask in somebody's name: the catalog's own views, which know a word that nobody else is told.

Every role's session logs in to the gateway by the same password, and whoever owns a foreign table of its server can have that stand for
anything there. Rows it then reads are a matter of trust in owners (docs/guides/security.md); orders and names of roles are not.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

from sqlglot import exp

from modak.errors import ModakError
from modak.gateway.dialect.remote import parse_remote, substitute

COLUMN = "token"


class NotEntitled(ModakError):
    """An order, or a query in somebody's name, that did not come through the catalog's own views."""

    code = "not_entitled"
    sqlstate = "42501"


class Authority:
    """``read`` asks Postgres for the word; it changes with the gateway's password, whoever changed that."""

    def __init__(self, read: Callable[[], str | None]) -> None:
        self._read = read
        self._known: str | None = None

    def check(self, said: str | None) -> None:
        if self.knows(said):
            return
        self._known = self._read()
        if not self.knows(said):
            hint = "call the functions of the schema modak; a foreign table of your own cannot do it"
            raise NotEntitled("permission denied for orders to the gateway", hint=hint)

    def knows(self, said: str | None) -> bool:
        """Without asking anybody."""
        return bool(said) and self._known is not None and hmac.compare_digest(str(said), self._known)


def said_in(sql: str, values: Sequence[str | None]) -> str | None:
    """The word that comes with a remote SELECT; None without one, and with two."""
    found = {
        str(literal.this)
        for node in substitute(parse_remote(sql), values).conjuncts
        if isinstance(node, exp.EQ) and isinstance(node.this, exp.Column) and node.this.name == COLUMN
        for literal in node.expression.find_all(exp.Literal)
    }
    return found.pop() if len(found) == 1 else None
