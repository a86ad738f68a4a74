"""What the first words of an action say, and what hides in texts, names and comments."""

from __future__ import annotations

import pytest

from modak.core.alter_action import Action, Kind, instead, parse
from modak.errors import UsageError


@pytest.mark.parametrize(
    ("text", "kind", "column"),
    [
        ("drop column note", Kind.DROP, "note"),
        ("DROP Note cascade;", Kind.DROP, "note"),
        ('drop column if exists "Odd ""name"""', Kind.DROP, 'Odd "name"'),
        ("alter column n type bigint", Kind.RETYPE, "n"),
        ("alter n set data type numeric(12, 2)", Kind.RETYPE, "n"),
        ("alter column n set default 5", Kind.COLUMN, "n"),
        ("alter column n set expression as (m * 2)", Kind.EXPRESSION, "n"),
        ("add c int default 5", Kind.ADD, "c"),
        ("add column if not exists c int", Kind.ADD, "c"),
        ("add constraint positive check (n > 0)", Kind.CONSTRAINT, ""),
        ("add primary key (id, at)", Kind.CONSTRAINT, ""),
        ("rename constraint a to b", Kind.CONSTRAINT, ""),
        ("validate constraint positive", Kind.CONSTRAINT, ""),
        ("rename to other", Kind.OTHER, ""),
        ("owner to somebody", Kind.OTHER, ""),
        ("/* drop column a */ set schema s", Kind.OTHER, ""),
    ],
)
def test_an_action_is_known_by_its_first_words(text: str, kind: Kind, column: str) -> None:
    assert [(action.kind, action.column) for action in parse(text)] == [(kind, column)]


def test_actions_are_separated_by_commas_outside_of_everything() -> None:
    text = "add column a numeric(10, 2) default 1.5, drop b, add c text default E'it\\', drop d;' /* , /* drop e */ , */"
    text += ', drop "," -- , drop f'
    assert [(action.kind, action.column) for action in parse(text)] == [
        (Kind.ADD, "a"),
        (Kind.DROP, "b"),
        (Kind.ADD, "c"),
        (Kind.DROP, ","),
    ]


def test_values_that_are_computed_are_seen() -> None:
    assert [action.using for action in parse("alter a type int using b::int, alter b type text, alter c type int using (1)")] == [
        True,
        False,
        True,
    ]


def test_a_rename_knows_both_names() -> None:
    assert parse('rename column a to "B"') == (Action(Kind.RENAME, 'rename column a to "B"', "a", "B"),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ; ",
        "-- nothing",
        "drop column a; drop table b",
        "drop column a,",
        "drop",
        "add column a text default 'b",
        'drop "a',
        "add column a text default $x$ b",
        "drop column a /* b",
    ],
)
def test_what_is_no_action_is_a_mistake(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("rename to x", "unregister"),
        ("attach partition p default", "alter table public.t_hot attach"),
        ("set (fillfactor = 70)", "alter table public.t_hot"),
        ("enable row level security", "by-passed"),
    ],
)
def test_another_way_is_shown(text: str, way: str) -> None:
    assert way in instead(parse(text)[0], "public.t_hot")
