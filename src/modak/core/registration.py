"""What may be registered, and as what. Every reason against it is found before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from modak.core.lag import Lag
from modak.core.lake_table import lake_columns, layout
from modak.core.partitioning import partitioning_problems
from modak.core.table import Dependent, Relation, Trigger
from modak.core.tier_key import TierKeyType
from modak.core.type_map import has_one_text
from modak.errors import ModakError, Problem

IDENTIFIER_BYTES_MAX = 63
# Names that Iceberg readers give to their own hidden columns, and the ones the two-tier view needs.
RESERVED_COLUMN = re.compile(r"^(_file|_pos|_deleted|_spec_id|_partition|_row_id|_last_updated_sequence_number|_pin|_modak_.*)$", re.I)
DEPENDENTS = ("refuse", "keep", "move")


@dataclass(frozen=True)
class Options:
    """What the user asks for; lags and width are still text."""

    tier_key: str
    primary_key: tuple[str, ...] = ()
    mode: str = "tiered"
    surface: str = "view"
    lag: str | None = None
    reclaim_lag: str | None = None
    width: str | None = None
    keep_heap: bool = False
    lake_retention: str | None = None
    heap_retention: str | None = None
    profile: str | None = None
    text_columns: tuple[str, ...] = ()
    dependents: str = "refuse"
    lake_table: str | None = None
    premake: int = 0
    check_cold_keys: bool = False
    hybrid: bool = False

    @property
    def has_seam(self) -> bool:
        """Whether the table gets two tiers: rows that are in the lake only, a view over both, and corrections."""
        return self.mode == "tiered" or self.heap_retention is not None


@dataclass(frozen=True)
class Decision:
    """The outcome of looking at a table: how it would be registered, and what stands against it."""

    primary_key: tuple[str, ...]
    key_type: TierKeyType | None
    layout: str
    lags: dict[str, str | None]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = field(default=())


def decide(relation: Relation, options: Options) -> Decision:
    key_type, key_problems = _tier_key(relation, options)
    primary_key = options.primary_key or relation.primary_key
    problems = [
        *_kind(relation),
        *key_problems,
        *_primary_key(relation, primary_key, given=bool(options.primary_key)),
        *_columns(relation, options, primary_key),
        *_protection(relation, options),
        *_mirroring(relation, options),
        *_names(relation, options),
        *_conflicts(options),
    ]
    chosen, lags = "none", dict[str, str | None]()
    if key_type is not None:
        wanted = layout(options.width, key_type)
        problems += [wanted] if isinstance(wanted, Problem) else []
        chosen = "none" if isinstance(wanted, Problem) else wanted
        lags, lag_problems = _lags(options, key_type, chosen)
        problems += lag_problems
        problems += partitioning_problems(relation, options.tier_key, key_type) if options.has_seam else ()
    return Decision(primary_key, key_type, chosen, lags, tuple(problems), tuple(_notes(relation, options, primary_key)))


def column_problems(relation: Relation, options: Options) -> list[Problem]:
    """What the columns alone say against a table: the rules that must also hold after they changed."""
    _, key_problems = _tier_key(relation, options)
    return [*key_problems, *_primary_key(relation, options.primary_key, given=True), *_columns(relation, options, options.primary_key)]


def _kind(relation: Relation) -> Iterator[Problem]:
    kinds = {
        "v": "a view",
        "m": "a materialized view",
        "f": "a foreign table",
        "S": "a sequence",
        "i": "an index",
        "I": "an index",
    }
    if relation.kind not in "rp":
        yield Problem("kind", f"{relation.name} is {kinds.get(relation.kind, 'no table')}", "register the table itself")
    if relation.is_partition:
        yield Problem("is_partition", f"{relation.name} is a partition", "register the partitioned table it belongs to")
    if relation.inherits:
        yield Problem("inheritance", f"{relation.name} takes part in table inheritance", "use declarative partitioning")
    persistence = {"u": "UNLOGGED", "t": "TEMPORARY"}
    for name, kept in [(relation.name, relation.persistence), *((leaf.name, leaf.persistence) for leaf in relation.partitions)]:
        if kept in persistence:
            yield Problem("persistence", f"{name} is {persistence[kept]}", f"alter table {name} set logged" if kept == "u" else None)
    for leaf in relation.partitions:
        if leaf.kind == "f":
            yield Problem("foreign_partition", f"partition {leaf.name} is a foreign table", "detach it first")


def _tier_key(relation: Relation, options: Options) -> tuple[TierKeyType | None, list[Problem]]:
    column = relation.column(options.tier_key)
    if column is None:
        return None, [_no_column(relation, "tier key", options.tier_key)]
    try:
        # A user's own type may be called date and be anything.
        return TierKeyType.from_pg(column.type.base if column.type.namespace == "pg_catalog" else column.type.display), []
    except ModakError as refused:
        return None, [Problem("tier_key_type", f"tier key {options.tier_key} has type {column.type.display}", refused.hint or str(refused))]


def _no_column(relation: Relation, role: str, name: str) -> Problem:
    return Problem(
        "no_column", f"{role} column {name!r} does not exist", f"columns: {', '.join(column.name for column in relation.columns)}"
    )


def _primary_key(relation: Relation, key: tuple[str, ...], *, given: bool) -> Iterator[Problem]:
    if not key:
        yield Problem(
            "no_primary_key",
            f"{relation.name} has no primary key",
            "add one, or name the columns that identify a row with --primary-key",
        )
    if len(set(key)) < len(key):
        yield Problem("primary_key", f"primary key names a column twice: {', '.join(key)}")
    for name in key:
        column = relation.column(name)
        if column is None:
            yield _no_column(relation, "primary key", name)
        elif column.generated == "v":
            yield Problem("primary_key", f"primary key column {name} is virtual", "use stored columns")
        elif not has_one_text(column.type):
            yield Problem(
                "primary_key_type",
                f"primary key column {name} has type {column.type.display}, whose equal values may read differently",
                "a correction would miss its row: use integers, text, uuid, dates, times, bounded numeric or an enum",
            )
        elif not column.deterministic:
            yield Problem(
                "primary_key_collation",
                f"primary key column {name} has a nondeterministic collation, by which different texts are equal",
                "a correction finds its row by the text of its key: give the column a deterministic collation",
            )
    if given and relation.primary_key and not set(key) & set(relation.primary_key):
        yield Problem(
            "primary_key",
            f"--primary-key {','.join(key)} has nothing in common with the table's primary key {','.join(relation.primary_key)}",
            "leave --primary-key out to use the table's own",
        )


def _columns(relation: Relation, options: Options, primary_key: tuple[str, ...]) -> Iterator[Problem]:
    _, problems = lake_columns(relation.columns, primary_key, options.text_columns)
    yield from problems
    for name in options.text_columns:
        if relation.column(name) is None:
            yield _no_column(relation, "--as-text", name)
        elif name == options.tier_key:
            yield Problem("as_text", f"tier key {name} must keep its order and cannot be text in the lake")
    seen: dict[str, str] = {}
    for column in relation.columns:
        twin = seen.setdefault(column.name.lower(), column.name)
        if twin != column.name:
            yield Problem(
                "column_case",
                f"columns {twin!r} and {column.name!r} differ only by case",
                "lake engines cannot tell them apart: rename one",
            )
        if RESERVED_COLUMN.match(column.name):
            yield Problem("column_name", f"column {column.name!r} has a name that lake engines reserve", "rename it")
        if not column.name.isprintable():
            yield Problem("column_name", f"column {column.name!r} has characters the lake cannot represent", "rename it")


def _protection(relation: Relation, options: Options) -> Iterator[Problem]:
    """What would be by-passed or would silently keep reading only the heap."""
    if not relation.may_alter:
        yield Problem("owner", f"{relation.name} belongs to {relation.owner}", "connect as its owner or as a superuser")
    if relation.row_security:
        yield Problem(
            "row_security",
            f"{relation.name} has row-level security, which a view would by-pass",
            "disable it, or keep this table hot",
        )
    if options.surface == "heap" or not options.has_seam:
        return
    for dependent in relation.dependents:
        if options.dependents == "keep" or (options.dependents == "move" and follows_name(relation, dependent)):
            continue
        ways = "--dependents keep leaves it on the heap"
        if follows_name(relation, dependent):
            ways += ", --dependents move makes it follow the name"
        ways += ", --surface heap leaves the name to the heap"
        yield Problem("dependent", f"{dependent.kind} {dependent.name} depends on {dependent.on} and would see hot rows only", ways)


def follows_name(relation: Relation, dependent: Dependent) -> bool:
    """Whether a dependent can be bound to the view instead; one that names a partition cannot."""
    return dependent.kind in ("view", "function") and dependent.on_oid == relation.oid


def derived_name(table: str, suffix: str) -> str:
    """``table_suffix`` within Postgres's limit on identifiers; cut at a character, never inside one."""
    room = IDENTIFIER_BYTES_MAX - len(suffix.encode())
    return table.encode()[:room].decode(errors="ignore") + suffix


def _mirroring(relation: Relation, options: Options) -> Iterator[Problem]:
    """What the stream cannot carry."""
    if options.mode != "mirrored":
        return
    if options.heap_retention is not None and options.tier_key not in (options.primary_key or relation.primary_key):
        # A key says on which side of T its row is: what the stream brings and what corrections say never meet.
        yield Problem("heap_retention", f"the primary key lacks the tier key {options.tier_key}", "--heap-retention needs it there")
    yield from generated_problems([column.name for column in relation.columns if column.generated])


def generated_problems(names: Iterable[str]) -> list[Problem]:
    """Of a mirrored table's columns that Postgres computes."""
    return [
        Problem(
            "generated",
            f"column {name} is generated, and the stream does not carry such values",
            f'make it a plain one (alter table … alter column "{name}" drop expression), or drop it',
        )
        for name in names
    ]


def heap_name(relation: Relation, surface: str) -> str:
    return derived_name(relation.name.name, "_hot") if surface == "view" else relation.name.name


def view_name(relation: Relation, surface: str) -> str:
    return relation.name.name if surface == "view" else derived_name(relation.name.name, "_all")


def _names(relation: Relation, options: Options) -> Iterator[Problem]:
    wanted = heap_name(relation, options.surface) if options.surface == "view" else view_name(relation, options.surface)
    if wanted in relation.siblings and options.has_seam:
        yield Problem(
            "name_taken",
            f"the name {wanted!r} is taken in schema {relation.name.schema}",
            f"rename it: the surface {options.surface} needs it",
        )
    if not relation.name.name.isprintable() or not relation.name.schema.isprintable():
        shown = f"{relation.name.schema}.{relation.name.name}"
        yield Problem("table_name", f"{shown!r} has characters the lake cannot represent", "rename it")
    if options.lake_table is not None and not re.fullmatch(r"[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*", options.lake_table):
        what = f"lake table {options.lake_table!r} must be namespace.table in lower case letters, digits and _"
        yield Problem("lake_table", what, is_usage=True)


def _conflicts(options: Options) -> Iterator[Problem]:
    checks: list[tuple[bool, str, str | None]] = [
        (options.mode not in ("tiered", "mirrored"), f"mode {options.mode!r} is neither tiered nor mirrored", None),
        (options.surface not in ("view", "heap"), f"surface {options.surface!r} is neither view nor heap", None),
        (options.dependents not in DEPENDENTS, f"--dependents {options.dependents!r} is none of {', '.join(DEPENDENTS)}", None),
        (
            options.mode == "mirrored" and options.keep_heap,
            "--keep-heap is for tiered tables",
            "a mirrored heap is complete anyway",
        ),
        (
            options.hybrid and options.mode != "mirrored",
            "--hybrid is for mirrored tables",
            "a tiered table is read from both tiers anyway",
        ),
        (
            options.hybrid and options.heap_retention is not None,
            "--hybrid and --heap-retention exclude each other",
            "a table that sheds partitions is read from both tiers anyway",
        ),
        (options.mode == "mirrored" and options.check_cold_keys, "--check-cold-keys is for tiered tables", None),
        (options.mode == "mirrored" and options.lake_retention is not None, "--lake-retention is for tiered tables", None),
        (options.mode == "mirrored" and options.lag is not None, "--lag is for tiered tables", "a mirror trails by itself"),
        (
            not options.has_seam and options.surface == "view",
            "--surface view is for tiered tables and mirrored ones with --heap-retention",
            "a mirrored table keeps its name and everything else: --surface heap",
        ),
        (options.mode == "mirrored" and options.reclaim_lag is not None, "--reclaim-lag is for tiered tables", None),
        (not options.has_seam and options.premake > 0, "--premake is for tables that shed partitions", "make them as before"),
        (options.mode == "tiered" and options.heap_retention is not None, "--heap-retention is for mirrored tables", "use --lag"),
        (
            options.keep_heap and options.lake_retention is not None,
            "--keep-heap and --lake-retention contradict each other",
            None,
        ),
        (
            options.keep_heap and options.reclaim_lag is not None,
            "--keep-heap never reclaims, so --reclaim-lag has no meaning",
            None,
        ),
        (not 0 <= options.premake <= 1000, f"--premake {options.premake} is not between 0 and 1000", None),
    ]
    for wrong, message, hint in checks:
        if wrong:
            yield Problem("option", message, hint, is_usage=True)


def _lags(options: Options, key_type: TierKeyType, chosen: str) -> tuple[dict[str, str | None], list[Problem]]:
    problems: list[Problem] = []
    parsed: dict[str, Lag | None] = {}
    for name in ("lag", "reclaim_lag", "lake_retention", "heap_retention"):
        text = getattr(options, name)
        try:
            parsed[name] = None if text is None else Lag.parse(text, key_type)
        except ModakError as refused:
            parsed[name] = None
            problems.append(Problem("lag", f"--{name.replace('_', '-')}: {refused}", refused.hint, is_usage=True))
    problems += _retention(parsed, key_type, chosen)
    return {name: lag.text if lag else None for name, lag in parsed.items()}, problems


def _retention(parsed: dict[str, Lag | None], key_type: TierKeyType, chosen: str) -> Iterator[Problem]:
    keep, lag = parsed["lake_retention"], parsed["lag"]
    if keep is None:
        return
    if chosen == "none":
        hint = "give --width, so that whole partitions can expire"
        yield Problem("option", "--lake-retention needs a partitioned lake table", hint, is_usage=True)
    if keep.approximate(key_type) <= (lag.approximate(key_type) if lag else 0):
        hint = "rows would expire before they are tiered"
        yield Problem("option", "--lake-retention must exceed the hot period (--lag)", hint, is_usage=True)


def _notes(relation: Relation, options: Options, primary_key: tuple[str, ...]) -> Iterator[str]:
    """Things to know that do not stand in the way."""
    if primary_key and not proven_unique(relation, primary_key):
        yield f"no unique index proves that ({', '.join(primary_key)}) identifies a row; registration looks for duplicates"
    for name in primary_key:
        column = relation.column(name)
        if column is not None and not column.not_null:
            yield f"primary key column {name} will be set NOT NULL (unregister takes that back)"
    if relation.publications and options.mode == "tiered":
        yield f"the heap is in publication {', '.join(relation.publications)}; subscribers will see partitions being dropped, not deletes"
    if options.has_seam:
        yield from _trigger_notes(relation.triggers)


def _trigger_notes(triggers: tuple[Trigger, ...]) -> Iterator[str]:
    """What the owner of triggers would not expect of them, and what to do."""
    entering = [trigger.name for trigger in triggers if trigger.on_insert]
    when = [
        *(["UPDATE"] if any(trigger.on_update for trigger in triggers) else ["UPDATE of its key or tier key"]),
        *(["DELETE"] if any(trigger.on_delete for trigger in triggers) else []),
    ]
    if entering:
        yield (
            f"WARNING: triggers of INSERT ({', '.join(entering)}) fire too when a row that only the lake has is changed through the name, "
            f"by {' or '.join(when)}: it comes back into the heap first. What they count, send or refuse then is no new row; let "
            "them ask for current_setting('modak.returning', true) (docs/guides/writing.md)"
        )
    if any(trigger.on_update or trigger.on_delete for trigger in triggers):
        names = ", ".join(trigger.name for trigger in triggers if trigger.on_update or trigger.on_delete)
        yield f"triggers of UPDATE and DELETE ({names}): a cold row comes back into the heap so that they fire (docs/guides/writing.md)"
    whole = [trigger.name for trigger in triggers if not trigger.of_rows]
    if whole:
        yield (
            f"WARNING: statement triggers ({', '.join(whole)}) fire once for each row that an UPDATE, DELETE or COPY through the name "
            "changes, their transition tables hold that one row, and for no row they do not fire (docs/guides/writing.md)"
        )


def proven_unique(relation: Relation, key: tuple[str, ...]) -> bool:
    return any(set(unique) <= set(key) for unique in relation.unique_keys)
