"""JSON lines: values as Postgres will read them, whatever the lines look like, and refusals that name their line."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modak.load.errors import LoadRejected
from modak.load.files import ArrowFile, ArrowStream, ParquetRows
from modak.load.jsonl import JsonLines
from modak.load.request import RowFile
from modak.load.rows import Chunk, ColumnSets, Digest, Source
from modak.load.values import Form

ARRAY = Form("array", element=Form())
FORMS = {"id": Form(), "t": Form(), "n": Form(is_number=True), "j": Form("json"), "a": ARRAY, "ja": Form("array", element=Form("json"))}


def sets(**forms: Form) -> ColumnSets:
    return ColumnSets(forms or FORMS, lambda name, line: LoadRejected(f"line {line}: no column {name}", line=line, column=name), ("id",))


def read(source: RowFile, known: ColumnSets | None = None) -> list[tuple[int, dict[str, str | None]]]:
    """(line, what Postgres would read) of each row."""
    known = known or sets()
    found = []
    for chunk in Source(source, 10**6).chunks(known):
        found += [(chunk.line(index), row) for index, row in enumerate(_rows(chunk, known))]
    return found


def _rows(chunk: Chunk, known: ColumnSets) -> list[dict[str, str | None]]:
    """The chunk's lines, read back as COPY reads them."""
    text = bytes(chunk.numbered()).decode()
    rows = []
    for line in text.removesuffix("\n").split("\n"):
        _, number, *fields = line.split("\t")
        assert len(fields) == len(chunk.columns)
        rows.append({name: _unescaped(field) for name, field in zip(chunk.columns, fields, strict=True) if name in known.sets[int(number)]})
    return rows


def _unescaped(field: str) -> str | None:
    if field == "\\N":
        return None
    found, characters = "", iter(field)
    for one in characters:
        if one != "\\":
            found += one
        else:
            following = next(characters)
            found += {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}.get(following, following)
    return found


def lines(*texts: str | bytes, end: str = "\n") -> JsonLines:
    return JsonLines(io.BytesIO(b"".join((text if isinstance(text, bytes) else text.encode()) + end.encode() for text in texts)))


def texts(*given: str, column: str) -> list[str | None]:
    return [row[column] for _, row in read(lines(*(f'{{"id":1,"{column}":{one}}}' for one in given)))]


def refusal(*given: str | bytes) -> LoadRejected:
    with pytest.raises(LoadRejected) as caught:
        read(lines(*given))
    return caught.value


# Values


def test_numbers_keep_their_digits() -> None:
    spelled = ["1", "-0", "1.10", "123456789012345678901234567890.123456789", "1e400", "-1.5E-7", "0.1"]
    assert texts(*spelled, column="n") == spelled
    assert texts(*spelled, column="t") == spelled


def test_a_string_is_its_text() -> None:
    awkward = [
        "",
        "plain",
        "tab\t",
        "line\nend",
        "back\\slash",
        '"',
        "\\N",
        "\\.",
        "\r",
        "\b\f\v",
        "/",
        "é",
        "\u2028",
        "😀",
        "null",
        "\x7f",
        "a\\u0041",
    ]
    for dump in (
        lambda one: json.dumps(one),
        lambda one: json.dumps(one, ensure_ascii=False),
        lambda one: json.dumps(one).replace("/", "\\/"),
    ):
        assert texts(*map(dump, awkward), column="t") == awkward
        for one in awkward:
            assert texts(dump(one), "null", "12", column="t") == [one, None, "12"]


def test_booleans_nulls_and_nested_values_in_plain_columns() -> None:
    assert texts("true", "false", "null", column="t") == ["true", "false", None]
    assert texts('{"b": [1, "x\\ty"]}', '"s\\u00e9"', "3", column="t") == ['{"b": [1, "x\\ty"]}', "sé", "3"]
    assert texts("[1, 2]", column="t") == ["[1, 2]"]


def test_json_columns_take_the_value_as_it_stands() -> None:
    spelled = ['{"a": 1.10, "b":[1,2 , null]}', '"text"', '"\\u00e9\\\\\\n"', "12345678901234567890.10", "true", "[]"]
    assert texts(*spelled, "null", column="j") == [*spelled, None]


def test_lists_for_array_columns() -> None:
    assert texts("[1, 2.50, null]", '["a", "b\\"c", "d\\\\"]', "[]", "[[1],[2]]", '"{1,2}"', column="a") == [
        '{"1","2.50",NULL}',
        '{"a","b\\"c","d\\\\"}',
        "{}",
        '{{"1"},{"2"}}',
        "{1,2}",
    ]
    assert texts('[{"x": 1.10}, null, [1]]', column="ja") == ['{"{\\"x\\": 1.10}",NULL,"[1]"}']


@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.text()), min_size=1, max_size=20), st.booleans())
def test_any_scalars(values: list[Any], ascii_only: bool) -> None:
    if any(isinstance(value, str) and ("\0" in value or any("\ud800" <= one <= "\udfff" for one in value)) for value in values):
        return
    expected = [None if value is None else value if isinstance(value, str) else json.dumps(value) for value in values]
    assert texts(*(json.dumps(value, ensure_ascii=ascii_only) for value in values), column="t") == expected


# Lines


def test_blank_lines_are_counted() -> None:
    found = read(lines("", '{"id":1}', "", "  ", '{"id":2}', '{"id":3,"t":"x"}', ""))
    assert found == [(2, {"id": "1"}), (5, {"id": "2"}), (6, {"id": "3", "t": "x"})]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_blocks_change_nothing(end: str, block: int) -> None:
    dice = random.Random(block)
    rows = [{name: "é" * dice.randint(0, 9) for name in ("id", "t", "n")[: dice.randint(1, 3)]} for _ in range(60)]
    body = end.join(json.dumps(row) if dice.random() < 0.9 else "" for row in rows).encode()
    expected = [(number, json.loads(text)) for number, text in enumerate(body.decode().split(end), 1) if text]
    assert read(JsonLines(io.BytesIO(body), block_bytes=block)) == expected


def test_rows_may_have_different_columns() -> None:
    known = sets()
    found = read(lines('{"id":1,"t":"a"}', '{"t":null,"id":2}', '{"id":3}', '{"n":1,"id":4}'), known)
    assert [row for _, row in found] == [{"id": "1", "t": "a"}, {"id": "2", "t": None}, {"id": "3"}, {"id": "4", "n": "1"}]
    assert known.sets == [("id", "t"), ("id",), ("id", "n")]


def test_the_last_of_equal_keys_counts() -> None:
    assert read(lines('{"id":1,"t":"a","t":"b"}', '{"id":2,"id":3}')) == [(1, {"id": "1", "t": "b"}), (2, {"id": "3"})]
    assert read(lines('{"id":1,"\\u0074":"a"}')) == [(1, {"id": "1", "t": "a"})]


def test_spaces_around_and_inside() -> None:
    assert read(lines(' { "id" : 1 , "t" : "a" } ', '\t{"id":2,"t":"b"}\t')) == [(1, {"id": "1", "t": "a"}), (2, {"id": "2", "t": "b"})]


def test_nothing_is_nothing() -> None:
    for source in (lines(), lines("", " ", "\t"), JsonLines(io.BytesIO(b"\n" * 10))):
        assert source.is_empty
        assert read(source) == []
    assert not lines("", '{"id":1}').is_empty


def test_it_can_be_read_again_and_has_one_digest() -> None:
    def digest(source: JsonLines) -> str:
        known, found = sets(), Digest()
        for chunk in Source(source, 100).chunks(known):
            found.add(chunk, known.sets)
        return found.text()

    source = lines('{"id":1,"t":"a"}', '{"id":2,"t":"b"}')
    assert Source(source, 9).replayable
    assert digest(source) == digest(source) == digest(lines('{"id":1,"t":"a"}', "", '{"t":"b","id":2}'))
    assert digest(source) != digest(lines('{"id":1,"t":"a"}', '{"id":2,"t":"c"}'))


def test_a_batch_has_its_most_rows() -> None:
    with pytest.raises(LoadRejected, match="3 rows at most"):
        list(Source(lines(*['{"id":1}'] * 4), 3).chunks(sets()))


# Refusals


GOOD = '{"id":1}'
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "no JSON": ("{id:1}", "no JSON"),
    "half a row": ('{"id":1', "no JSON"),
    "a number that is none": ('{"id":01}', "no JSON"),
    "NaN": ('{"id":NaN}', "no JSON"),
    "a list": ("[1]", "no JSON object"),
    "a number": ("12", "no JSON object"),
    "text behind it": ('{"id":1} x', "no JSON"),
    "two rows": ('{"id":1} {"id":2}', "no JSON"),
    "two rows and a comma": ('{"id":1},{"id":2}', "no JSON"),
    "a control character": ('{"id":"\x01"}', "no JSON"),
    "broken UTF-8": (b'{"id":"\xff"}', "not UTF-8"),
    "broken UTF-8 in a key": (b'{"\xff":1}', "not UTF-8"),
    "a byte order mark": (b'\xef\xbb\xbf{"id":1}', "no JSON"),
    "half a character": ('{"id":1,"t":"\\ud800"}', "no JSON|half a character"),
    "the other half": ('{"id":1,"t":"\\udc00"}', "no JSON|half a character"),
    "half a character and text": ('{"id":1,"t":"\\ud800abcdefgh"}', "no JSON|half a character"),
    "NUL": ('{"id":1,"t":"\\u0000"}', "NUL"),
    "NUL in a list": ('{"id":1,"a":["\\u0000"]}', "NUL"),
    "too deep": ('{"id":1,"j":' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
    "too deep for an array": ('{"id":1,"a":' + "[" * 900 + "]" * 900 + "}", "nested too deep|no column"),
    "another column": ('{"id":1,"x":2}', "no column x"),
    "no key": ('{"t":1}', "missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "too deep for an array"])
@pytest.mark.parametrize("before", [[], [GOOD], [GOOD, "", GOOD]], ids=["first", "second", "behind a blank line"])
def test_a_refusal_names_its_line(name: str, before: list[str]) -> None:
    text, message = REFUSED[name]
    error = refusal(*before, text, GOOD)
    assert error.line == len(before) + 1
    with pytest.raises(LoadRejected, match=message):
        raise error


def test_an_object_over_two_lines_is_refused() -> None:
    for first, second in (
        ('{"id":1,', '"t":2}'),
        ('{"id":1', '}{"id":2}'),
        ('{"id":1,"j":{}', '{"id":2}}'),
        ('{"id":1}{"id":2,"j":[{}', "{}]}"),
    ):
        assert refusal(first, second).line == 1


def test_a_long_line_is_refused_before_it_is_held() -> None:
    source = JsonLines(io.BytesIO(b'{"id":1}\n{"id":"' + b"x" * 5000 + b'"}\n'), line_bytes_max=1000, block_bytes=100)
    with pytest.raises(LoadRejected, match="line 2 is longer") as caught:
        read(source)
    assert caught.value.line == 2


def test_the_column_and_the_value_are_named() -> None:
    error = refusal(GOOD, '{"id":1,"t":"a\\u0000"}')
    assert (error.line, error.column) == (2, "t")
    assert error.facts["value"] == '"a\\u0000"'


# Files


TABLE = pa.table({"id": [1, 2, 3], "t": ["a", None, "tab\t"]})


def _bytes(kind: str, table: pa.Table) -> bytes:
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, sink, row_group_size=2)
    else:
        with (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


KINDS = {"parquet": ParquetRows, "stream": ArrowStream, "file": ArrowFile}


@pytest.mark.parametrize("kind", KINDS)
def test_arrow_and_parquet(kind: str) -> None:
    source = KINDS[kind](io.BytesIO(_bytes(kind, TABLE)))
    for _ in range(2):
        assert read(source) == [(1, {"id": "1", "t": "a"}), (2, {"id": "2", "t": None}), (3, {"id": "3", "t": "tab\t"})]
        assert not source.is_empty
    assert KINDS[kind](io.BytesIO(_bytes(kind, TABLE.slice(0, 0)))).is_empty


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_broken_files_are_refused(kind: str, seed: int) -> None:
    """Cut, bent and made of something else: refused, or read as what they then say."""
    dice, whole = random.Random(seed), _bytes(kind, TABLE)
    for body in (b"", b"\0", whole[: len(whole) // 2], b"PAR1" + whole, *(_bent(dice, whole) for _ in range(60))):
        source = KINDS[kind](io.BytesIO(body))
        try:
            source.is_empty  # noqa: B018
            read(source)
        except LoadRejected:
            continue


def _bent(dice: random.Random, whole: bytes) -> bytes:
    bent = bytearray(whole)
    for _ in range(dice.randint(1, 4)):
        bent[dice.randrange(len(bent))] = dice.randrange(256)
    return bytes(bent)
