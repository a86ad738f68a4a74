"""What upkeep decides, on lists of files and snapshots."""

from __future__ import annotations

import pytest

from modak.core.maintenance import (
    KnownSnapshot,
    LakeFile,
    Upkeep,
    batches,
    decoupled_upkeep,
    expired,
    joins,
    meanings,
    merges_manifests,
    rewrites,
    says_age,
    warnings,
)
from modak.errors import UsageError

MB = 1024 * 1024
UPKEEP = Upkeep()


def small(count: int, partition: int = 1, size: int = MB) -> list[LakeFile]:
    return [LakeFile(f"{partition}-{number:02}", partition, size, 1000, low=number) for number in range(count)]


def test_small_files_are_packed_only_when_there_are_enough_of_them() -> None:
    assert rewrites(small(7), UPKEEP) == []
    assert rewrites(small(8), UPKEEP) == [tuple(f"1-{number:02}" for number in range(8))]
    assert rewrites([*small(7, 1), *small(7, 2)], UPKEEP) == []
    assert len(rewrites([*small(8, 1), *small(8, 2)], UPKEEP)) == 2
    assert rewrites(small(8), Upkeep(compact=False)) == []
    assert rewrites(small(3), Upkeep(small_files=3)) != []


def test_large_files_are_left_alone_among_small_ones() -> None:
    large = LakeFile("large", 1, 100 * MB, 1_000_000, low=3)
    assert all("large" not in group for group in rewrites([*small(9), large], UPKEEP))


def test_a_group_is_bounded_and_keeps_the_order_of_keys() -> None:
    groups = rewrites(small(20, size=50 * MB), UPKEEP)
    assert [len(group) for group in groups] == [5, 5, 5, 5]
    assert [name for group in groups for name in group] == sorted(name for group in groups for name in group)


def test_a_whole_file_alone_is_not_copied() -> None:
    files = small(8, size=60 * MB)
    assert [len(group) for group in rewrites(files[:5], Upkeep(small_files=2))] == [4]


def test_a_worn_file_is_written_anew_even_alone() -> None:
    worn = LakeFile("worn", 1, 100 * MB, 1000, deleted_rows=100, delete_files=1)
    assert rewrites([worn], UPKEEP) == [("worn",)]
    assert rewrites([LakeFile("fresh", 1, 100 * MB, 1000, deleted_rows=99, delete_files=1)], UPKEEP) == []
    assert rewrites([LakeFile("shared", 1, 100 * MB, 1000, is_shared=True)], UPKEEP) == [("shared",)]


def test_splintered_deletes_are_joined_unless_the_file_is_written_anew() -> None:
    splintered = LakeFile("a", 1, 100 * MB, 1000, deleted_rows=8, delete_files=4)
    worn = LakeFile("b", 1, 100 * MB, 1000, deleted_rows=400, delete_files=4)
    assert joins([splintered, worn, LakeFile("c", 1, MB, 10, 1, 3)], UPKEEP) == ["a"]


def test_batches_are_bounded() -> None:
    sizes = {"a": 6, "b": 6, "c": 2, "d": 20}
    assert list(batches([("a",), ("b", "c"), ("d",)], sizes, 10)) == [[("a",)], [("b", "c")], [("d",)]]
    assert list(batches([("a",), ("c",)], sizes, 10)) == [[("a",), ("c",)]]
    assert list(batches([], sizes, 10)) == []


def snapshots(*ages: float) -> list[KnownSnapshot]:
    return [KnownSnapshot(100 + number, number + 1, age) for number, age in enumerate(ages)]


def test_snapshots_expire_below_the_floor_and_past_their_age() -> None:
    upkeep = Upkeep(snapshots=1, snapshot_age=10)
    old = snapshots(50, 40, 30, 5, 1)
    assert sorted(expired(old, 5, upkeep)) == [100, 101, 102]
    assert sorted(expired(old, 3, upkeep)) == [100, 101]
    assert sorted(expired(old, 5, Upkeep(snapshots=4, snapshot_age=10))) == [100]
    assert expired(old, 1, upkeep) == []
    assert expired(old, None, upkeep) == []
    assert expired(old, 5, Upkeep(snapshots=1, snapshot_age=10, expire=False)) == []


def test_a_named_snapshot_stays() -> None:
    tagged = [KnownSnapshot(1, 1, 100, is_named=True), KnownSnapshot(2, 2, 90), KnownSnapshot(3, 3, 1)]
    assert expired(tagged, 3, Upkeep(snapshots=1, snapshot_age=10)) == [2]


def test_manifests_are_merged_when_few_would_do() -> None:
    assert merges_manifests([1] * 16, UPKEEP, 1000)
    assert not merges_manifests([1] * 15, UPKEEP, 1000)
    assert not merges_manifests([400] * 16, UPKEEP, 600)


def test_a_policy_is_read_with_its_units() -> None:
    chosen = {"snapshot_age": "2 days", "deleted_percent": "30", "orphans": "on", "target_mb": "64", "interval": "90 minutes"}
    upkeep = Upkeep.of(chosen)
    assert (upkeep.snapshot_age, upkeep.deleted_percent, upkeep.orphans, upkeep.target_bytes) == (172_800, 0.3, True, 64 * MB)
    assert upkeep.interval == 5400
    assert Upkeep.of(None) == Upkeep.of({}) == Upkeep()
    assert set(meanings()) == set(Upkeep().as_json())


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"target": "64"}, "unknown maintenance key 'target'"),
        ({"target_mb": "0"}, "from 1 to 2048"),
        ({"deleted_percent": "many"}, "from 1 to 100"),
        ({"orphans": "perhaps"}, "neither on nor off"),
        ({"snapshot_age": "soon"}, "soon"),
        ({"orphan_age": "59 minutes"}, "less than an hour"),
    ],
)
def test_a_policy_without_meaning_is_refused(chosen: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Upkeep.of(chosen)


def test_warnings_say_what_slows_readers_down() -> None:
    assert warnings(small(3), 1, 1, UPKEEP) == []
    assert warnings(small(9), 1, 1, UPKEEP) == ["9 of 9 files are small"]
    worn = LakeFile("worn", 1, 100 * MB, 1000, deleted_rows=250, delete_files=1)
    assert warnings([worn], 2000, 500, UPKEEP) == [
        "25% of the rows in the files are deleted",
        "500 manifests have to be read before a query begins",
        "2000 snapshots are kept",
    ]


def test_a_decoupled_tables_policy_is_in_its_properties() -> None:
    plain = decoupled_upkeep({})
    assert (plain.snapshot_age, plain.orphan_age, plain.small_files) == (600, 86_400, Upkeep().small_files)
    told = decoupled_upkeep(
        {
            "history.expire.max-snapshot-age-ms": "3600000",
            "history.expire.min-snapshots-to-keep": "3",
            "write.target-file-size-bytes": str(512 << 20),
            "modak.mode": "decoupled",
        }
    )
    assert (told.snapshot_age, told.snapshots, told.target_mb) == (3600, 3, 512)
    # Ours go before Iceberg's, and what Iceberg's say beyond what we can do is as much as we can.
    own = decoupled_upkeep({"history.expire.max-snapshot-age-ms": "3600000", "modak.maintenance.snapshot_age": "2 days"})
    assert own.snapshot_age == 172_800
    assert decoupled_upkeep({"write.target-file-size-bytes": "99999999999999"}).target_mb == 2048
    assert decoupled_upkeep({"history.expire.max-snapshot-age-ms": "forever"}).snapshot_age == 600
    with pytest.raises(UsageError, match="unknown maintenance key"):
        decoupled_upkeep({"modak.maintenance.speed": "9"})
    assert not says_age({})
    assert says_age({"history.expire.max-snapshot-age-ms": "1"})
    assert says_age({"modak.maintenance.snapshot_age": "1 day"})
