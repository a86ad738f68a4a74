"""Run the code blocks of a page as a reader would: one shell, one database, from top to bottom.

```` ```sh ```` goes to bash, ```` ```sql ```` to the database that MODAK_DSN names by then. A ```` ```text ```` block right after one of
these is its output: each of its lines must appear there. A block below ``<!-- not run: reason -->`` is left out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = "<!-- not run:"
_BLOCK_SECONDS_MAX = 180
_KEPT = ("HOME", "LANG", "MODAK_CACHE", "XDG_CACHE_HOME", "JDK_JAVA_OPTIONS", "PYTHONPATH")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``expected`` are the lines of the output that the page shows below it."""

    page: Path
    line: int
    language: str
    text: str
    expected: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The runnable blocks of a page, each with the output the page claims."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end_of_last = -1
    for match in _FENCE.finditer(text):
        between = text[max(end_of_last, 0) : match.start()]
        end_of_last, previous_end = match.end(), end_of_last
        line = text.count("\n", 0, match.start()) + 1
        if match[1] in ("sh", "sql") and not between.rstrip("\n").rpartition("\n")[2].startswith(_NOT_RUN):
            found.append(Block(page, line, match[1], match[2]))
        elif match[1] == "text" and found and previous_end >= 0 and not between.strip():
            last = found.pop()
            found.append(Block(last.page, last.line, last.language, last.text, tuple(filter(None, map(_plain, match[2].splitlines())))))
    return found


def _plain(line: str) -> str:
    """A line without the alignment of its columns; rulers and row counts say nothing."""
    if re.fullmatch(r"[\s─+-]*|\s*\(\d+ rows?\)\s*", line):
        return ""
    return " ".join(line.split())


def statements(text: str) -> Iterator[str]:
    """The statements of a block: each ends with a line that ends in ``;``, outside dollar quotes."""
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        whole = "\n".join(lines)
        if line.rstrip().endswith(";") and whole.count("$$") % 2 == 0:
            yield whole
            lines = []
    if "".join(lines).strip():
        raise ValueError(f"the last statement of a block has no end: {lines}")


class Reader:
    """Somebody who follows a page. What a shell block exports is there in the next one."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self.environment = {**kept, "PATH": path, "COLUMNS": "200", **variables}
        self.notices: list[str] = []

    def follow(self, found: Sequence[Block]) -> None:
        for block in found:
            output = self.shell(block) if block.language == "sh" else self.sql(block)
            plain = {_plain(line) for line in output.splitlines()}
            missing = [line for line in block.expected if line not in plain]
            assert not missing, f"{block.place} does not print {missing}, but\n{output}"

    def shell(self, block: Block) -> str:
        remembered = self.folder / "environment"
        script = f"{block.text}\nenv -0 > {shlex.quote(str(remembered))}\n"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BLOCK_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{block.place} ended with {done.returncode}\n{block.text}\n{done.stdout}"
        self.environment = dict(pair.split("=", 1) for pair in remembered.read_text(encoding="utf-8").split("\0") if pair)
        return done.stdout

    def sql(self, block: Block) -> str:
        lines: list[str] = []
        with psycopg.connect(self.environment["MODAK_DSN"], autocommit=True, options="-c timezone=UTC") as connection:
            connection.add_notice_handler(lambda notice: self.notices.append(notice.message_primary or ""))
            # What Postgres says about skipping a scan, it says at this level.
            connection.execute("set client_min_messages = debug1")
            for statement in statements(block.text):
                try:
                    cursor = connection.execute(statement.encode())
                except psycopg.Error as error:
                    raise AssertionError(f"{block.place}: {error}\n{statement}") from error
                lines += _printed(cursor)
        return "\n".join(lines)


def _printed(cursor: psycopg.Cursor[tuple[object, ...]]) -> Iterator[str]:
    """The result as psql aligns it, but for the blanks."""
    result = cursor.pgresult
    if result is None or not result.nfields:
        return
    columns = range(result.nfields)
    yield " | ".join((result.fname(column) or b"").decode() for column in columns)
    for row in range(result.ntuples):
        yield " | ".join((result.get_value(row, column) or b"").decode() for column in columns)
