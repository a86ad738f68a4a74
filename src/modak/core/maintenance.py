"""What the lake's files need: lists in, lists out.

Small files are packed, files with many deleted rows are written anew, delete files that splinter are joined, and snapshots that nobody
can read any more expire. Each threshold is a key of the table's maintenance policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from modak.core.lag import Lag
from modak.core.tier_key import MICROSECONDS_PER_DAY, TierKeyType
from modak.errors import UsageError

T = TypeVar("T")
_MEGABYTE = 1024 * 1024
_SECONDS_PER_DAY = 86_400
_ORPHAN_SECONDS_MIN = 3600


def _switch(text: str) -> bool:
    if text.lower() not in ("on", "off", "true", "false", "yes", "no"):
        raise UsageError(f"{text!r} is neither on nor off")
    return text.lower() in ("on", "true", "yes")


def _count(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not lowest <= int(text) <= highest:
            raise UsageError(f"{text!r} is not a whole number from {lowest} to {highest}")
        return int(text)

    return parse


def _percent(text: str) -> float:
    return _count(1, 100)(text) / 100


def _seconds(text: str) -> int:
    """An interval; months count 30 days, as where Postgres compares intervals."""
    return Lag.parse(text, TierKeyType.TIMESTAMPTZ).approximate(TierKeyType.TIMESTAMPTZ) * _SECONDS_PER_DAY // MICROSECONDS_PER_DAY


def _age(text: str) -> int:
    """What is younger may be a file of a task that outlived its driver, or of another engine's commit under way."""
    seconds = _seconds(text)
    if seconds < _ORPHAN_SECONDS_MIN:
        raise UsageError(f"{text!r} is less than an hour", hint="a younger file may be somebody's work: '1 hour' or more")
    return seconds


def _key(default: Any, parse: Callable[[str], Any], means: str) -> Any:
    return field(default=default, metadata={"parse": parse, "means": means})


@dataclass(frozen=True)
class Upkeep:
    """A table's maintenance policy. The keys of ``modak policy T maintenance.KEY=VALUE`` are these names."""

    enabled: bool = _key(True, _switch, "whether the worker maintains the table by itself")
    interval: int = _key(3600, _seconds, "how often it looks, as an interval")
    compact: bool = _key(True, _switch, "pack small files, and write files with many deleted rows anew")
    small_files: int = _key(8, _count(2, 100_000), "pack a lake partition's small files when there are so many")
    target_mb: int = _key(128, _count(1, 2048), "size of a packed file in megabytes; files below half of it are small")
    deleted_percent: float = _key(0.1, _percent, "write a file anew when so many percent of its rows are deleted")
    delete_files: int = _key(4, _count(2, 10_000), "join the delete files of a data file when there are so many")
    manifests: int = _key(16, _count(2, 100_000), "rewrite manifests when so many small ones could be few")
    expire: bool = _key(True, _switch, "let snapshots go that nobody can read any more")
    snapshot_age: int = _key(5 * _SECONDS_PER_DAY, _seconds, "keep snapshots younger than this interval")
    snapshots: int = _key(10, _count(1, 100_000), "keep so many of the newest snapshots, whatever their age")
    orphans: bool = _key(False, _switch, "remove files that nothing refers to")
    orphan_age: int = _key(3 * _SECONDS_PER_DAY, _age, "only files older than this interval, an hour at least; a load's files a day")

    @classmethod
    def of(cls, chosen: Mapping[str, Any] | None) -> Upkeep:
        """The defaults with what the table says otherwise; raises UsageError for a key or value that has no meaning."""
        known = {one.name: one.metadata["parse"] for one in fields(cls)}
        for name in chosen or {}:
            if name not in known:
                raise UsageError(f"unknown maintenance key {name!r}", hint=f"known: {', '.join(known)}")
        return cls(**{name: known[name](str(value)) for name, value in (chosen or {}).items()})

    @property
    def target_bytes(self) -> int:
        return self.target_mb * _MEGABYTE

    def as_json(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


# A decoupled table has a snapshot for every transaction, and a commit costs more the more there are. Files stay longer than snapshots.
_DECOUPLED = {"snapshot_age": "10 minutes", "orphan_age": "1 day"}
PROPERTY = "modak.maintenance."


_AGE = "history.expire.max-snapshot-age-ms"


def says_age(properties: Mapping[str, str]) -> bool:
    """Whether somebody wants snapshots to be kept for a certain time."""
    return _AGE in properties or PROPERTY + "snapshot_age" in properties


def decoupled_upkeep(properties: Mapping[str, str]) -> Upkeep:
    """The policy of a decoupled table, whose properties are Iceberg's: what other engines set there holds as well."""
    chosen: dict[str, Any] = dict(_DECOUPLED)
    age, least = properties.get(_AGE), properties.get("history.expire.min-snapshots-to-keep")
    size = properties.get("write.target-file-size-bytes")
    if age is not None and age.isdecimal():
        chosen["snapshot_age"] = f"{int(age) // 1000} seconds"
    if least is not None and least.isdecimal():
        chosen["snapshots"] = str(max(1, min(int(least), 100_000)))
    if size is not None and size.isdecimal():
        chosen["target_mb"] = str(max(1, min(int(size) // _MEGABYTE, 2048)))
    said = {name.removeprefix(PROPERTY): value for name, value in properties.items() if name.startswith(PROPERTY)}
    return Upkeep.of(chosen | said)


def meanings() -> dict[str, str]:
    return {one.name: one.metadata["means"] for one in fields(Upkeep)}


@dataclass(frozen=True)
class LakeFile:
    """A data file as upkeep sees it. ``is_shared``: delete files apply to it that speak of other files as well."""

    name: str
    partition: Hashable
    bytes: int
    rows: int
    deleted_rows: int = 0
    delete_files: int = 0
    is_shared: bool = False
    low: int | None = None


def is_small(file: LakeFile, upkeep: Upkeep) -> bool:
    return file.bytes < upkeep.target_bytes // 2


def is_worn(file: LakeFile, upkeep: Upkeep) -> bool:
    """So much of it is deleted that readers pay for it, or the deletes are not its own."""
    return file.is_shared or (file.deleted_rows > 0 and file.deleted_rows >= upkeep.deleted_percent * file.rows)


def rewrites(files: Iterable[LakeFile], upkeep: Upkeep) -> list[tuple[str, ...]]:
    """Files to be written anew together, by name: neighbours in one lake partition, at most about twice the target's size."""
    if not upkeep.compact:
        return []
    by_partition: dict[Hashable, list[LakeFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    return [group for members in by_partition.values() for group in _packed(members, upkeep)]


def _packed(members: Sequence[LakeFile], upkeep: Upkeep) -> Iterator[tuple[str, ...]]:
    packs = sum(is_small(file, upkeep) for file in members) >= upkeep.small_files
    chosen = [file for file in members if is_worn(file, upkeep) or (packs and is_small(file, upkeep))]
    chosen.sort(key=lambda one: (one.low is not None, one.low or 0, one.name))
    for group in _bounded(chosen, lambda file: file.bytes, 2 * upkeep.target_bytes):
        # A whole file alone would only be copied.
        if len(group) > 1 or is_worn(group[0], upkeep):
            yield tuple(file.name for file in group)


def _bounded(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Neighbours together up to a size; one that is larger stands alone."""
    taken: list[T] = []
    filled = 0
    for item in items:
        size = size_of(item)
        if taken and filled + size > most:
            yield taken
            taken, filled = [], 0
        taken.append(item)
        filled += size
    if taken:
        yield taken


def joins(files: Iterable[LakeFile], upkeep: Upkeep) -> list[str]:
    """Data files, not worn yet, whose deletes are spread over many delete files."""
    if not upkeep.compact:
        return []
    return [file.name for file in files if file.delete_files >= upkeep.delete_files and not is_worn(file, upkeep)]


def batches(groups: Sequence[tuple[str, ...]], sizes: Mapping[str, int], bytes_max: int) -> Iterator[list[tuple[str, ...]]]:
    """Groups in commits of a bounded size: what is done stays done, whatever happens to the rest."""
    return _bounded(groups, lambda group: sum(sizes[name] for name in group), bytes_max)


@dataclass(frozen=True)
class KnownSnapshot:
    """A snapshot of the lake. ``is_named``: a tag or branch points at it."""

    snapshot_id: int
    sequence_number: int
    age_seconds: float
    is_named: bool = False


def expired(snapshots: Iterable[KnownSnapshot], floor: int | None, upkeep: Upkeep) -> list[int]:
    """Snapshots to let go, by id. ``floor`` is the oldest S that somebody may still read; None: nothing is published, so nothing goes."""
    if floor is None or not upkeep.expire:
        return []
    newest_first = sorted(snapshots, key=lambda one: one.sequence_number, reverse=True)
    old = [one for one in newest_first[upkeep.snapshots :] if one.age_seconds > upkeep.snapshot_age]
    return [one.snapshot_id for one in old if one.sequence_number < floor and not one.is_named]


def merges_manifests(entries: Sequence[int], upkeep: Upkeep, entries_max: int) -> bool:
    """``entries`` of each manifest that is less than half full: worth a rewrite if they would be half as many at most."""
    return upkeep.compact and len(entries) >= upkeep.manifests and len(entries) >= 2 * max(1, -(-sum(entries) // entries_max))


def warnings(files: Sequence[LakeFile], snapshots: int, manifests: int, upkeep: Upkeep) -> list[str]:
    """What of the lake's state slows readers down, for people."""
    said = []
    small = sum(is_small(file, upkeep) for file in files)
    partitions = len({file.partition for file in files}) or 1
    if small >= upkeep.small_files * partitions and small > 1:
        said.append(f"{small} of {len(files)} files are small")
    rows, deleted = sum(file.rows for file in files), sum(file.deleted_rows for file in files)
    if rows and deleted >= upkeep.deleted_percent * rows:
        said.append(f"{deleted / rows:.0%} of the rows in the files are deleted")
    if any(file.is_shared for file in files):
        said.append("delete files that speak of several data files slow every reader down")
    if manifests > 8 * upkeep.manifests:
        said.append(f"{manifests} manifests have to be read before a query begins")
    if snapshots > 100 * upkeep.snapshots:
        said.append(f"{snapshots} snapshots are kept")
    return said
