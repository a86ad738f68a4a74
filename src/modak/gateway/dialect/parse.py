"""Postgres SQL to a syntax tree, in a form in which nothing was guessed.

sqlglot reads many dialects and forgives much. Here every function keeps its own name (a call is an ``Anonymous`` node), and a tree is given
out only if Postgres's own precedence rules would build the same one.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType

from modak.gateway.dialect.errors import Untranslatable
from modak.scan import sqltext

_OWN_SYNTAX = ("CAST", "EXTRACT", "POSITION", "SUBSTRING", "TRIM")
_IDENTIFIER_BYTES_MAX = 63
_STATEMENT_CHARS_MAX = 1_000_000


class StrictPostgres(Postgres):
    """Postgres without sqlglot's knowledge of functions: what a name means is decided by the translator alone."""

    class Parser(PostgresParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            **{name: PostgresParser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX},
            # postgres_fdw prints position(x in y) as "position"(y, x); without quotes and IN it is no SQL of Postgres's.
            "POSITION": lambda self: self._parse_position(haystack_first=True),
        }
        NO_PAREN_FUNCTION_PARSERS = {name: PostgresParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE")}  # noqa: RUF012


def parse(sql: str) -> exp.Expr:
    """The tree of one statement; Untranslatable if there is none, or more than one, or if it may not mean to Postgres what it shows."""
    if len(sql) > _STATEMENT_CHARS_MAX:
        raise Untranslatable("a statement of more than a million characters")
    try:
        dialect = StrictPostgres()
        tokens = dialect.tokenize(sql)
        _check_tokens(sql, tokens)
        statements = dialect.parser().parse(tokens, sql)
        if len(statements) != 1 or not isinstance(statements[0], exp.Expr):
            raise Untranslatable("not one statement")
        _check_precedence(statements[0])
    except SqlglotError as error:
        raise Untranslatable(f"not understood: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise Untranslatable("nested too deeply") from error
    return statements[0]


def parse_expression(sql: str) -> exp.Expr:
    """The tree of one expression."""
    select = parse(f"SELECT {sql}")
    if (
        not isinstance(select, exp.Select)
        or len(select.expressions) != 1
        or {key for key, value in select.args.items() if value} - {"expressions", "kind"}
    ):
        raise Untranslatable("not one expression")
    node = select.expressions[0]
    assert isinstance(node, exp.Expr)
    return node


_PLAIN_ESCAPES = re.compile(r"(?:[^\\]|\\[\\'nrt])*", re.DOTALL)
# Tokens that sqlglot reads by rules of other dialects, or that mean something to its parser which Postgres does not know.
_FOREIGN_TOKENS = {TokenType.UNICODE_STRING, TokenType.NATIONAL_STRING, TokenType.BIT_STRING, TokenType.HEX_STRING}


def _check_tokens(sql: str, tokens: list[Token]) -> None:
    for number, token in enumerate(tokens):
        kind = token.token_type
        if kind in _FOREIGN_TOKENS:
            raise Untranslatable(f"literal {sql[token.start : token.end + 1][:40]}")
        if kind == TokenType.BYTE_STRING and not _PLAIN_ESCAPES.fullmatch(sql[token.start + 2 : token.end]):
            raise Untranslatable("escapes in an E'' string")
        if kind == TokenType.NUMBER:
            _check_number(sql, token, tokens[number + 1] if number + 1 < len(tokens) else None)
        elif kind in (TokenType.VAR, TokenType.IDENTIFIER) and len(token.text.encode()) > _IDENTIFIER_BYTES_MAX:
            raise Untranslatable("an identifier that Postgres would cut")


def _check_number(sql: str, token: Token, following: Token | None) -> None:
    """``1_000`` reads as 1 with a name to sqlglot, as 1000 to Postgres 16 and as an error to Postgres 15."""
    if following is not None and following.start == token.end + 1 and re.match(r"[\w.$]", sql[following.start]):
        raise Untranslatable(f"number {sql[token.start : following.end + 1][:40]}")


# Postgres's operators from loose to tight. A comparison does not chain, arithmetic groups to the left.
_LEVELS: dict[type[exp.Expr], int] = {
    exp.Or: 1,
    exp.And: 2,
    exp.Not: 3,
    exp.Is: 4,
    exp.NullSafeEQ: 4,
    exp.NullSafeNEQ: 4,
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), 5),
    **dict.fromkeys((exp.Between, exp.In, exp.Like, exp.ILike, exp.SimilarTo, exp.Escape), 6),
    **dict.fromkeys((exp.DPipe, exp.RegexpLike, exp.RegexpILike, exp.StartsWith, exp.Operator), 7),
    exp.Add: 8,
    exp.Sub: 8,
    **dict.fromkeys((exp.Mul, exp.Div, exp.Mod), 9),
    exp.Pow: 10,
    exp.AtTimeZone: 11,
    exp.Neg: 12,
}
_TIGHTEST = 99
_LEFT_ASSOCIATIVE = {1, 2, 7, 8, 9, 10, 11}


def _level(node: object) -> int:
    return _LEVELS.get(type(node), _TIGHTEST)  # type: ignore[arg-type]


def _check_precedence(tree: exp.Expr) -> None:
    for node in tree.walk():
        level = _level(node)
        if level == _TIGHTEST or isinstance(node, exp.Escape):
            continue
        first = level if level in _LEFT_ASSOCIATIVE or level in (3, 12) else level + 1
        for key, value in node.args.items():
            least = first if key == "this" else level + 1
            if isinstance(value, exp.Expr) and _level(value) < least:
                raise Untranslatable(f"operators in need of parentheses: {node.sql('postgres')[:80]}")


def only(node: exp.Expr, *allowed: str) -> None:
    """Refuses a node with an argument that its translation would drop."""
    for key, value in node.args.items():
        if key not in allowed and value not in (None, False, []):
            raise Untranslatable(f"{type(node).__name__} with {key}")


def identifier(node: object) -> str:
    """An identifier as Postgres folds it: unquoted ASCII letters become small."""
    if not isinstance(node, exp.Identifier):
        raise Untranslatable("a name that is not an identifier")
    name = str(node.this)
    return name if node.args.get("quoted") else re.sub("[A-Z]+", lambda match: match[0].lower(), name)


def string(text: str) -> str:
    """A string literal for DuckDB."""
    if "\0" in text:
        raise Untranslatable("a NUL character")
    return sqltext.string(text)


def unwrapped(node: exp.Expr) -> exp.Expr:
    """The node without the parentheses around it."""
    while isinstance(node, exp.Paren):
        only(node, "this")
        node = node.this
    return node


def literal_text(node: exp.Expr) -> str | None:
    """The value of an untyped string literal, or None if the node is not one."""
    if isinstance(node, exp.Literal) and node.is_string:
        return str(node.this)
    if isinstance(node, exp.ByteString | exp.RawString):
        only(node, "this")
        return str(node.this)
    return None
