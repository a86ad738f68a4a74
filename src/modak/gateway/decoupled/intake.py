"""Rows of an INSERT that comes by postgres_fdw, batch after batch: Postgres makes the next one while those before are read and written.

A batch is acknowledged before it is read. What is wrong with it is told with a later one, or when Postgres puts the statement away
(DEALLOCATE), which it does before the INSERT ends: to its client it is an error of that INSERT either way.
"""

from __future__ import annotations

import queue
import threading

from modak.gateway.decoupled.parcels import Parcel
from modak.gateway.decoupled.statements import Insert
from modak.gateway.decoupled.values import batch
from modak.gateway.wire.packed import Packed, columns

# So many bytes are read at a time, and so many times wait: small ones cost more each, large ones are memory.
_BLOCK_BYTES = 1024 * 1024
_BLOCKS_MAX = 2
# A message of large values is waited for: several of them in line would be too much memory.
_MESSAGE_BYTES_MAX = 16 * 1024 * 1024

Block = tuple[Insert, list[Packed]]


class Intake:
    """Used by the session's thread; a thread of its own fills the parcel. Ends with ``close`` or ``drop``."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel
        self._held: list[Packed] = []
        self._held_bytes = 0
        self._statement: Insert | None = None
        self._line: queue.Queue[Block | None] = queue.Queue(_BLOCKS_MAX)
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._fill, name="modak-intake", daemon=True)
        self._thread.start()

    def suits(self, statement: Insert) -> bool:
        return self._parcel.definition.table_id == statement.table_id and statement.is_plain

    @property
    def has_room(self) -> bool:
        """Whether ``put`` is done at once."""
        return self._held_bytes < _BLOCK_BYTES and not self._line.full() and self._failed is None

    def put(self, statement: Insert, values: Packed) -> None:
        self._check()
        if self._statement is not None and self._statement.columns != statement.columns:
            self._hand_over()
        self._statement = statement
        self._held.append(values)
        self._held_bytes += len(values.body)
        if len(values.body) > _MESSAGE_BYTES_MAX:
            self.arrive()
        elif self._held_bytes >= _BLOCK_BYTES:
            self._hand_over()

    def arrive(self) -> None:
        """Until everything has been read; raises what was wrong with it."""
        self._hand_over()
        self._line.join()
        self._check()

    def close(self) -> Parcel:
        """All rows, for the transaction to have."""
        self.arrive()
        self._end()
        self._parcel.close()
        return self._parcel

    def drop(self) -> None:
        self._failed = self._failed or InterruptedError()
        self._end()
        self._parcel.drop()

    def _hand_over(self) -> None:
        if self._statement is not None and self._held:
            self._line.put((self._statement, self._held))
        self._held, self._held_bytes = [], 0

    def _end(self) -> None:
        self._line.put(None)
        self._thread.join()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _fill(self) -> None:
        while (block := self._line.get()) is not None:
            try:
                # After a mistake the rest is only taken off the line, so that nobody waits for a place in it.
                if self._failed is None:
                    self._read(*block)
            except Exception as failed:  # noqa: BLE001
                self._failed = failed
            finally:
                self._line.task_done()

    def _read(self, statement: Insert, values: list[Packed]) -> None:
        width = len(statement.columns)
        given = dict(zip((f"a{number}" for number in statement.columns), columns(values, width), strict=True))
        self._parcel.add(batch(self._parcel.definition, given, sum(map(len, values)) // width))
