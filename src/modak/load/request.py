"""What a load is asked for and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from modak.errors import UsageError
from modak.load.errors import LoadRejected

if TYPE_CHECKING:
    from modak.lake.storage import Storage
    from modak.load.rows import Chunk, ColumnSets

LABEL_BYTES_MAX = 256
SPOOL_THRESHOLD = 1000
ROWS_MAX = 1_000_000
# Each set of columns that rows give is a statement of its own.
COLUMN_SETS_MAX = 1000


@runtime_checkable
class RowFile(Protocol):
    """Rows that stand in a file, and can be read from its start as often as they are needed: ``modak.load.jsonl``, ``modak.load.files``."""

    @property
    def is_empty(self) -> bool: ...

    def chunks(self, sets: ColumnSets) -> Iterator[Chunk]: ...


# Dicts, of JSON's values or of Python's own for dates, numbers and bytes; or whatever Arrow has; or a file.
Rows: TypeAlias = Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch | pa.RecordBatchReader | RowFile


@dataclass(frozen=True)
class LoadOptions:
    """How loads of one table are done.

    ``table`` is ``schema.table``, the registered name. More cold rows in a batch than ``spool_threshold`` become staged files where
    ``storage`` is given: the lake's place, or who knows it by the name of a storage profile. Without it every cold row goes to the delta.
    ``attempts`` bounds how often a lost race or a broken connection is tried again, ``lock_seconds`` how long a row that somebody else
    holds is waited for.
    """

    dsn: str = field(repr=False)
    table: str
    spool_threshold: int = SPOOL_THRESHOLD
    storage: Storage | Callable[[str], Storage] | None = None
    rows_max: int = ROWS_MAX
    attempts: int = 5
    lock_seconds: float = 30.0
    application: str = "modak-load"

    def __post_init__(self) -> None:
        for name in ("spool_threshold", "rows_max", "attempts"):
            if getattr(self, name) < (0 if name == "spool_threshold" else 1):
                raise UsageError(f"{name} of a load is too small", found=getattr(self, name))
        if not self.lock_seconds > 0:
            raise UsageError("lock_seconds of a load must be above 0", found=self.lock_seconds)


@dataclass(frozen=True)
class LoadRequest:
    """One batch. The label must mean the same rows on every attempt; derive it from the position in the source."""

    label: str
    rows: Rows


@dataclass(frozen=True)
class LoadResult:
    """``state`` is ``committed``, all rows visible, or ``staged``: files wait for adoption. ``replay``: the label was applied before, and
    these are the counts of that time. ``warning`` says when it came back with other rows."""

    label: str
    state: str
    hot_rows: int = 0
    delta_rows: int = 0
    spooled_rows: int = 0
    staged_files: Sequence[str] = ()
    replay: bool = False
    warning: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The answer as JSON; ``warning`` only where there is one."""
        answer: dict[str, object] = {
            "label": self.label,
            "state": self.state,
            "hot_rows": self.hot_rows,
            "delta_rows": self.delta_rows,
            "spooled_rows": self.spooled_rows,
            "staged_files": list(self.staged_files),
            "replay": self.replay,
        }
        return answer if self.warning is None else answer | {"warning": self.warning}


def check_label(label: object) -> str:
    """A label that the ledger can keep for ever and a person can read."""
    hint = f"1 to {LABEL_BYTES_MAX} bytes of printable text, such as orders-topic-3-offset-91100"
    if not isinstance(label, str) or not label:
        raise LoadRejected("a load needs a label", hint=hint)
    if not label.isprintable():
        raise LoadRejected("a label must be printable", hint=hint, label=ascii(label[:LABEL_BYTES_MAX]))
    if len(label.encode()) > LABEL_BYTES_MAX:
        raise LoadRejected("a label is too long", hint=hint, bytes=len(label.encode()))
    return label
