"""Collapsed changes against a table that made them one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modak.core.changes import UNCHANGED, Collapse, Key, KeyMissing, Row, Value

BIG = b"large" * 10
OTHER = b"other" * 10


def apply(lake: dict[Key, Row], collapse: Collapse) -> dict[Key, Row]:
    """What the pump does with a batch: unchanged values come from the lake as it was before."""
    after = {} if collapse.truncated else dict(lake)
    for key in collapse.gone():
        after.pop(key, None)
    for key, last in collapse.rows():
        row = last.row
        assert row is not None
        if UNCHANGED in row:
            assert last.origin is not None
            row = tuple(was if value is UNCHANGED else value for value, was in zip(row, lake[last.origin], strict=True))
        assert key not in after, "a new row beside an old one of its key"
        after[key] = row
    return after


def test_newest_wins() -> None:
    collapse = Collapse((0,))
    collapse.insert((b"1", b"a"))
    collapse.update((b"1", b"b"))
    assert [last.row for _, last in collapse.rows()] == [(b"1", b"b")]
    assert not list(collapse.gone())


def test_insert_and_delete_leave_nothing() -> None:
    collapse = Collapse((0,))
    collapse.insert((b"1", b"a"))
    collapse.delete((b"1", None))
    assert not collapse.last
    assert collapse.changes == 2


def test_delete_and_insert_replace() -> None:
    collapse = Collapse((0,))
    collapse.delete((b"1", None))
    collapse.insert((b"1", b"b"))
    assert list(collapse.gone()) == [(b"1",)]
    assert apply({(b"1",): (b"1", b"a")}, collapse) == {(b"1",): (b"1", b"b")}


def test_a_key_that_changes_leaves_its_place() -> None:
    collapse = Collapse((0,))
    collapse.update((b"2", UNCHANGED), (b"1", None))
    collapse.update((b"3", UNCHANGED), (b"2", None))
    assert apply({(b"1",): (b"1", BIG)}, collapse) == {(b"3",): (b"3", BIG)}


def test_the_whole_old_row_gives_what_was_unchanged() -> None:
    collapse = Collapse((0,))
    collapse.update((b"1", UNCHANGED), (b"1", BIG), is_whole=True)
    assert [last.row for _, last in collapse.rows()] == [(b"1", BIG)]


def test_a_key_stored_out_of_line_comes_from_the_old_row() -> None:
    collapse = Collapse((0, 1))
    collapse.update((UNCHANGED, b"2", b"x"), (BIG, b"1", None))
    assert set(collapse.last) == {(BIG, b"1"), (BIG, b"2")}


def test_a_truncate_forgets_what_was_before() -> None:
    collapse = Collapse((0,))
    collapse.update((b"1", b"a"))
    collapse.truncate()
    collapse.insert((b"1", b"b"))
    assert apply({(b"1",): (b"1", b"z"), (b"2",): (b"2", b"z")}, collapse) == {(b"1",): (b"1", b"b")}


@pytest.mark.parametrize("row", [(None, b"x"), (UNCHANGED, b"x")])
def test_a_change_without_its_key(row: Row) -> None:
    with pytest.raises(KeyMissing):
        Collapse((0,)).delete(row)


class Table:
    """A table with a large column in the last place, and what its stream says."""

    def __init__(self, rows: dict[Key, Row], collapse: Collapse, *, whole: bool) -> None:
        self.rows, self.collapse, self.whole = dict(rows), collapse, whole

    def change(self, kind: str, key: bytes, other: bytes, value: bytes, large: bytes | None) -> None:
        row = self.rows.get((key,))
        if kind == "insert" and row is None:
            self.rows[(key,)] = (key, value, large)
            self.collapse.insert((key, value, large))
        elif kind == "update" and row is not None:
            self._update(row, key, value, large)
        elif kind == "move" and row is not None and (other,) not in self.rows:
            self._update(row, other, value, large)
        elif kind == "delete" and row is not None:
            del self.rows[(key,)]
            self.collapse.delete(row if self.whole else (key, None, None))
        elif kind == "truncate":
            self.rows.clear()
            self.collapse.truncate()

    def _update(self, row: Row, key: bytes, value: bytes, large: bytes | None) -> None:
        kept: Value = row[2] if large is None else large
        said: Value = UNCHANGED if large is None and row[2] is not None else kept
        del self.rows[self.collapse.key(row)]
        self.rows[(key,)] = (key, value, kept)
        old = row if self.whole else (row[0], None, None) if row[0] != key else None
        self.collapse.update((key, value, said), old, is_whole=self.whole)


keys = st.sampled_from([b"1", b"2", b"3"])
kinds = st.sampled_from(["insert", "insert", "update", "update", "move", "delete", "delete", "truncate"])
changes = st.lists(st.tuples(kinds, keys, keys, st.sampled_from([b"a", b"b"]), st.sampled_from([None, BIG, OTHER])), max_size=30)


@settings(max_examples=400)
@given(st.lists(changes, max_size=4), st.booleans())
def test_batches_lead_to_the_table(batches: list[list[tuple[str, bytes, bytes, bytes, bytes | None]]], whole: bool) -> None:
    rows: dict[Key, Row] = {(b"1",): (b"1", b"0", BIG), (b"2",): (b"2", b"0", None)}
    lake = dict(rows)
    for batch in batches:
        collapse = Collapse((0,))
        table = Table(rows, collapse, whole=whole)
        for change in batch:
            table.change(*change)
        rows, lake = table.rows, apply(lake, collapse)
        assert lake == rows
