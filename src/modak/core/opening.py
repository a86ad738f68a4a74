"""What a statement begins with, behind blanks, comments and parentheses. Pure.

In one pass, however long and whatever the text is. A pattern for all of it tries every way to divide the comments among its branches, which
takes years for a hundred of them, and holds up every thread of the process meanwhile.
"""

from __future__ import annotations

import re

QUERIES = frozenset(("select", "with", "values", "table"))
# As Postgres reads them: other spaces of Unicode belong to names.
_BLANKS = re.compile(r"[ \t\n\r\f\v(]+|--[^\n\r]*")
_MARKS = re.compile(r"/\*|\*/")
_WORD = re.compile(r"[^\W\d][\w$]*")


def is_query(sql: str) -> bool:
    """By its first word. What the rest of them do is for whoever runs it to know."""
    return opening_word(sql) in QUERIES


def opening_word(sql: str) -> str:
    """In lower case; nothing where there is no word, or a comment without an end."""
    position = 0
    while True:
        if blanks := _BLANKS.match(sql, position):
            position = blanks.end()
        elif sql.startswith("/*", position):
            end = end_of_comment(sql, position)
            if end is None:
                return ""
            position = end
        else:
            word = _WORD.match(sql, position)
            return word[0].lower() if word else ""


def end_of_comment(text: str, start: int) -> int | None:
    """Behind the comment that begins here; None if it has no end. Comments of this kind stand in each other."""
    depth = 0
    for mark in _MARKS.finditer(text, start):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return None
