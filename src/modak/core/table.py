"""What a user's table looks like, as plain data: the source reads it, core decides on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from modak.core.type_map import PgType


@dataclass(frozen=True, order=True)
class Name:
    """A relation's name. Its text form quotes only what Postgres would have to."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"


def quoted(identifier: str) -> str:
    """As a person writes it: bare if it is a plain lower-case word, quoted otherwise."""
    plain = identifier.isascii() and identifier.replace("_", "a").isalnum() and identifier.lower() == identifier
    if plain and not identifier[0].isdigit():
        return identifier
    return '"' + identifier.replace('"', '""') + '"'


@dataclass(frozen=True)
class Column:
    name: str
    type: PgType
    not_null: bool = False
    default: str | None = None
    identity: str = ""  # 'a' always, 'd' by default
    generated: str = ""  # 's' stored, 'v' virtual
    comment: str | None = None
    number: int = 0  # pg_attribute.attnum: stays when the column is renamed
    collation: tuple[str, str] | None = None  # schema and name, where it is not the type's own
    # A collation that is not calls different texts equal. It follows from the collation, so it makes no column another one.
    deterministic: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Leaf:
    """One partition of the heap, as Postgres's catalogs describe it; ``bound`` is pg_get_expr's text."""

    oid: int
    name: Name
    parent_oid: int
    level: int
    is_leaf: bool
    bound: str
    strategy: str | None  # how this one is partitioned itself: r, l, h
    key_columns: tuple[str, ...]
    kind: str = "r"
    persistence: str = "p"
    bytes: int = 0
    estimated_rows: int = 0


@dataclass(frozen=True)
class Dependent:
    """Something that refers to the heap by its OID and would not follow the name to the two-tier view."""

    kind: str  # view, materialized view, function, signature of function, column, policy, foreign key
    name: str
    on: str
    oid: int
    on_oid: int = 0


@dataclass(frozen=True)
class Trigger:
    """One that somebody has on the heap; ``of_rows`` or of statements."""

    name: str
    of_rows: bool
    on_insert: bool
    on_delete: bool
    on_update: bool


@dataclass(frozen=True)
class Relation:
    """A table before registration."""

    oid: int
    name: Name
    kind: str
    persistence: str
    owner: str
    strategy: str | None
    key_columns: tuple[str, ...]  # '' stands for an expression
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...]
    partitions: tuple[Leaf, ...]
    may_alter: bool = True  # whether the role that looks has the owner's rights
    row_security: bool = False
    is_partition: bool = False
    inherits: bool = False
    comment: str | None = None
    dependents: tuple[Dependent, ...] = ()
    publications: tuple[str, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    siblings: frozenset[str] = field(default_factory=frozenset)  # other relation names in the schema

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(leaf for leaf in self.partitions if leaf.is_leaf)

    @property
    def bytes(self) -> int:
        return sum(leaf.bytes for leaf in self.leaves)

    @property
    def estimated_rows(self) -> int:
        return sum(leaf.estimated_rows for leaf in self.leaves)
