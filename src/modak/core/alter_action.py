"""Read the part of an ALTER TABLE behind the table's name: what it would do, as far as its first words tell. Pure.

This is no parser of SQL. It knows where a text, a name, a comment or a bracket ends, so that nothing inside them is taken for an action,
and what it does not recognise is refused. What really happened is seen afterwards, on the table.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

from modak.core.opening import end_of_comment
from modak.errors import UsageError


class Kind(enum.Enum):
    ADD = "add column"
    DROP = "drop column"
    RETYPE = "alter column type"
    EXPRESSION = "set expression"
    COLUMN = "alter column"  # default, not null, identity, statistics: names and types stay
    RENAME = "rename column"
    CONSTRAINT = "constraint"
    OTHER = "other"


@dataclass(frozen=True)
class Action:
    """One of the actions between the commas. ``using``: values are computed, not converted."""

    kind: Kind
    text: str
    column: str = ""
    to: str = ""
    using: bool = False


@dataclass(frozen=True)
class _Token:
    kind: str  # word, name, text, mark
    value: str
    start: int
    end: int


_SPACE = re.compile(r"\s+|--[^\n\r]*")
_WORD = re.compile(r"[^\W\d][\w$]*")
_NUMBER = re.compile(r"\d[\w.]*")
_NAME = re.compile(r'"((?:[^"]|"")*)"')
_TEXT = re.compile(r"'(?:[^']|'')*'")
_ESCAPED = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_DOLLAR = re.compile(r"\$(?:[^\W\d]\w*)?\$")
_TABLE_CONSTRAINTS = ("constraint", "primary", "unique", "check", "foreign", "exclude", "not")


def parse(text: str) -> tuple[Action, ...]:
    """The actions of one ALTER TABLE. A closing semicolon is forgiven, anything behind one is not."""
    tokens = list(_tokens(text))
    while tokens and tokens[-1].value == ";" and tokens[-1].kind == "mark":
        tokens.pop()
    if not tokens:
        raise UsageError("there is no action", hint="write what comes after ALTER TABLE and its name, for example: drop column note")
    if any(token.kind == "mark" and token.value == ";" for token in tokens):
        raise UsageError("more than one statement", hint="one ALTER TABLE at a time; several actions are separated by commas")
    return tuple(_action(text, part) for part in _parts(tokens))


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        if match := _SPACE.match(text, position):
            position = match.end()
            continue
        if text.startswith("/*", position):
            end = end_of_comment(text, position)
            if end is None:
                raise UsageError("a comment in the action has no end")
            position = end
            continue
        token = _token(text, position)
        yield token
        position = token.end


def _token(text: str, start: int) -> _Token:
    letter = text[start]
    if letter in "eE" and text.startswith("'", start + 1):
        return _matched(_ESCAPED, "text", text, start, start + 1)
    if letter == "'":
        return _matched(_TEXT, "text", text, start, start)
    if letter == '"':
        found = _matched(_NAME, "name", text, start, start)
        return _Token("name", found.value[1:-1].replace('""', '"'), found.start, found.end)
    if match := _DOLLAR.match(text, start):
        end = text.find(match[0], match.end())
        if end < 0:
            raise UsageError(f"the text that begins with {match[0]} has no end")
        return _Token("text", "", start, end + len(match[0]))
    for pattern, kind in ((_WORD, "word"), (_NUMBER, "text")):
        if match := pattern.match(text, start):
            return _Token(kind, match[0].lower(), start, match.end())
    return _Token("mark", letter, start, start + 1)


def _matched(pattern: re.Pattern[str], kind: str, text: str, start: int, at: int) -> _Token:
    match = pattern.match(text, at)
    if match is None:
        raise UsageError(f"a quote in the action has no end: {text[start : start + 20]}…")
    return _Token(kind, text[start : match.end()], start, match.end())


def _parts(tokens: list[_Token]) -> Iterator[list[_Token]]:
    """Between the commas outside of all brackets."""
    depth, part = 0, list[_Token]()
    for token in tokens:
        if token.kind == "mark":
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token.value, 0)
        if token.kind == "mark" and token.value == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    yield part


def _action(text: str, tokens: list[_Token]) -> Action:
    if not tokens:
        raise UsageError("an action between two commas is empty")
    whole = text[tokens[0].start : tokens[-1].end]
    words = [token.value if token.kind == "word" else "" for token in tokens]
    verb, second = words[0], words[1] if len(words) > 1 else ""
    if verb in ("add", "drop", "alter", "rename", "validate") and second in _TABLE_CONSTRAINTS:
        return Action(Kind.CONSTRAINT, whole)
    if verb not in ("add", "drop", "alter", "rename") or (verb == "rename" and second == "to"):
        return Action(Kind.OTHER, whole)
    rest = _after(tokens, words, 2 if second == "column" else 1)
    if not rest or rest[0].kind not in ("word", "name"):
        raise UsageError(f"no column is named: {whole}")
    column, behind = rest[0].value, [token.value if token.kind == "word" else "" for token in rest[1:]]
    if verb == "add":
        return Action(Kind.ADD, whole, column)
    if verb == "drop":
        return Action(Kind.DROP, whole, column)
    if verb == "rename":
        return Action(Kind.RENAME, whole, column, to=rest[2].value if len(rest) > 2 else "")
    if behind[:1] == ["type"] or behind[:3] == ["set", "data", "type"]:
        return Action(Kind.RETYPE, whole, column, using="using" in behind)
    if behind[:2] == ["set", "expression"]:
        return Action(Kind.EXPRESSION, whole, column)
    return Action(Kind.COLUMN, whole, column)


def _after(tokens: list[_Token], words: list[str], count: int) -> list[_Token]:
    """Past the verb and IF [NOT] EXISTS."""
    for clause in (["if", "not", "exists"], ["if", "exists"]):
        if words[count : count + len(clause)] == clause:
            return tokens[count + len(clause) :]
    return tokens[count:]


INSTEAD = {
    "rename to": "unregister it, rename it, and register it again with --lake-table",
    "set schema": "unregister it, move it, and register it again with --lake-table",
    "owner": "unregister it, change its owner, and register it again",
    "attach": "partitions belong to the heap: alter table {heap} attach partition …",
    "detach": "partitions belong to the heap: alter table {heap} detach partition …",
    "inherit": "a table that Modak keeps takes no part in inheritance",
    "no inherit": "a table that Modak keeps takes no part in inheritance",
    "enable row": "row-level security would be by-passed by the two-tier view",
    "force row": "row-level security would be by-passed by the two-tier view",
    "set unlogged": "an UNLOGGED table cannot be tiered",
    "truncate": "delete the rows instead",
    "drop table": "unregister the table first",
}


def instead(action: Action, heap: str) -> str:
    """What to do for an action that is no change of columns or constraints."""
    words = " ".join(token.value for token in _tokens(action.text) if token.kind == "word")
    found = next((way for start, way in INSTEAD.items() if words.startswith(start)), "run it on the heap itself: alter table {heap} …")
    return found.format(heap=heap)
