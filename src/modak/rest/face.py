"""One storage profile's tables, as a REST catalog has them: the rows of ``modak_lake`` that PyIceberg and Spark use too.

A commit is a compare-and-swap in Postgres: metadata files are written first, under names nobody knows, and then every row moves from the
metadata it was read with to the new one, all of them in one transaction or none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pyiceberg.catalog import PropertiesUpdateSummary
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, StagedTable, Table
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSnapshotUpdate, AssignUUIDUpdate, RemovePropertiesUpdate, SetPropertiesUpdate, TableUpdate
from sqlalchemy import insert, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from modak.errors import ModakError
from modak.lake import places
from modak.lake.iceberg import IcebergLake
from modak.lake.loading import find_table, load_table
from modak.lake.storage import Storage

Place = tuple[str, ...]
# What a table of Modak's takes from others: rows. The rest would pull away what published snapshots and their readers stand on.
_OF_MANAGED = frozenset(("add-snapshot", "set-snapshot-ref", "set-statistics", "set-partition-statistics"))
# Where else a table's properties put files, and what they may have PyIceberg import.
_PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
_CODE = re.compile(r"(^|\.)py-|impl$")
# Settings that a client needs to find the files; keys to them are its own.
_SHOWN = ("s3.endpoint", "s3.region", "client.region", "s3.path-style-access")
# What the catalog's columns hold. A slash would be a part of the address, where nobody finds the table again.
_NAME_CHARACTERS_MAX = 255
_NO_NAME = re.compile(r"[/\x00]")
# Postgres gave the transaction up, for the sake of another one.
_GIVEN_UP = ("40001", "40P01")


class Forbidden(ModakError):
    """The table is Modak's, and what was asked would break it."""

    code = "managed_table"
    sqlstate = "42501"


@dataclass(frozen=True)
class _Step:
    """A table on its way from one metadata file to the next; ``current`` is None for one that is made now."""

    place: Place
    current: Table | None
    staged: StagedTable


class Face:
    """``managed`` tells the lake tables that Modak tiers or mirrors to; every method may be called from any thread."""

    def __init__(self, storage: Storage, managed: Callable[[], Collection[str]]) -> None:
        self.storage = storage
        self._managed = managed
        self._lake = IcebergLake(storage)

    @property
    def catalog(self) -> SqlCatalog:
        return cast(SqlCatalog, self._lake.catalog)

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in self.storage.config.items() if name in _SHOWN}

    def create(self, namespace: Place, request: CreateTableRequest) -> Table | StagedTable:
        place = (*namespace, request.name)
        _check_names(place)
        location = request.location or self.storage.new_location(".".join(place))
        self._check(location, request.properties, {})
        if self._find(place) is not None:
            # Asked first, because a create that loses leaves its metadata file behind.
            raise TableAlreadyExistsError(".".join(place))
        self.catalog.load_namespace_properties(namespace)
        self._check_free(location, has_data=False)
        _make_folders(location)
        make = self.catalog._create_staged_table if request.stage_create else self.catalog.create_table
        return make(
            place,
            request.table_schema,
            location,
            request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
            request.write_order or UNSORTED_SORT_ORDER,
            request.properties,
        )

    def commit(self, requests: Sequence[CommitTableRequest]) -> list[StagedTable]:
        """All of them or none. CommitFailedException: something moved, or is not as it was required to be; nothing happened."""
        if len({_place(request) for request in requests}) < len(requests):
            raise ValueError("a commit names each table once")
        steps = [self._stage(request) for request in requests]
        for step in steps:
            self.catalog._write_metadata(step.staged.metadata, step.staged.io, step.staged.metadata_location)
        try:
            with Session(self.catalog.engine) as session:
                # In one order: two commits of the same tables would wait for each other.
                for step in sorted(steps, key=lambda step: step.place):
                    self._swap(session, step)
                session.commit()
        except (CommitFailedException, DBAPIError) as cause:
            if isinstance(cause, DBAPIError) and not _has_lost(cause):
                raise
            for step in steps:
                with contextlib.suppress(OSError):
                    step.staged.io.delete(step.staged.metadata_location)
            raise CommitFailedException("another commit came first") from cause
        return [step.staged for step in steps]

    def _stage(self, request: CommitTableRequest) -> _Step:
        place = _place(request)
        self._refuse_managed(place, {change.action for change in request.updates} - _OF_MANAGED)
        current = self._find(place)
        if current is None and not any(required.type == "assert-create" for required in request.requirements):
            raise NoSuchTableError(f"table {'.'.join(place)} does not exist")
        _check_names(place)
        for requirement in request.requirements:
            # First: what has moved says more than what no longer fits.
            requirement.validate(current.metadata if current is not None else None)
        updates = _applicable(current, request.updates)
        try:
            staged = self.catalog._update_and_stage_table(current, place, request.requirements, updates)
        except StopIteration as cause:
            # PyIceberg's word for a schema, a partition spec or a sort order that is not there.
            raise ValueError("the table would have no current schema, partition spec or sort order") from cause
        self._check(staged.metadata.location, staged.metadata.properties, current.properties if current is not None else {})
        if current is None or places.plain(current.location()) != places.plain(staged.metadata.location):
            # A table that is made in two steps has its data files already.
            self._check_free(staged.metadata.location, has_data=current is None)
        return _Step(place, current, staged)

    def _check(self, location: str, properties: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Files are written for a client by this process: below the warehouse and nowhere else, and by no code that a property names.

        Paths that another engine set are left as they are; new ones stay in the table's folder, which is what a purge removes.
        """
        if not places.is_below(location, self.storage.warehouse):
            raise ValueError(f"{location} is not below the warehouse {self.storage.warehouse}")
        for name in _PATHS:
            folder = self.storage.warehouse if properties.get(name) == known.get(name) else location
            if name in properties and not places.is_below(properties[name], folder):
                raise ValueError(f"{name} {properties[name]} is not below the table's location {location}")
        strange = [name for name in properties if _CODE.search(name)]
        if strange:
            raise ValueError(f"properties that name code are not taken: {', '.join(strange)}")

    def _check_free(self, location: str, *, has_data: bool) -> None:
        reason = places.why_not_free(location, self.storage, has_data=has_data)
        if reason is not None:
            raise ValueError(reason)

    def _find(self, place: Place) -> Table | None:
        return find_table(self.catalog, place)

    def _swap(self, session: Session, step: _Step) -> None:
        *namespace, name = step.place
        if step.current is None:
            session.execute(
                insert(IcebergTables).values(self.catalog._create_table_row(".".join(namespace), name, step.staged.metadata_location))
            )
            return
        found = session.execute(
            update(IcebergTables)
            .where(
                IcebergTables.catalog_name == self.catalog.name,
                IcebergTables.table_namespace == ".".join(namespace),
                IcebergTables.table_name == name,
                IcebergTables.metadata_location == step.current.metadata_location,
            )
            .values(metadata_location=step.staged.metadata_location, previous_metadata_location=step.current.metadata_location)
        )
        if found.rowcount != 1:  # type: ignore[attr-defined]
            raise CommitFailedException(f"table {'.'.join(step.place)} moved")

    def drop(self, place: Place, *, purge: bool) -> None:
        self._refuse_managed(place, {"drop"})
        table = load_table(self.catalog, place)
        if purge and not places.owns_its_folder(table, self.storage):
            raise Forbidden(
                f"the files of {'.'.join(place)} cannot be removed: other tables' are in its folder {table.location()}",
                hint="drop it without purge",
            )
        self.catalog.drop_table(place)
        if purge:
            places.remove_files(table, self.storage)

    def rename(self, source: Place, target: Place) -> None:
        _check_names(target)
        self._refuse_managed(source, {"rename"})
        self.catalog.rename_table(source, target)

    def create_namespace(self, namespace: Place, properties: dict[str, str]) -> None:
        _check_names((".".join(namespace),))
        try:
            self.catalog.create_namespace(namespace, properties)
        except IntegrityError as cause:
            raise NamespaceAlreadyExistsError(f"namespace {'.'.join(namespace)} exists already") from cause

    def change_namespace(self, namespace: Place, removals: set[str], updates: dict[str, str]) -> PropertiesUpdateSummary:
        try:
            return self.catalog.update_namespace_properties(namespace, removals, updates)
        except DBAPIError as cause:
            if not _has_lost(cause):
                raise
            raise CommitFailedException("another change came first") from cause

    def drop_namespace(self, namespace: Place) -> None:
        if self.catalog.list_namespaces(namespace):
            raise NamespaceNotEmptyError(f"namespace {'.'.join(namespace)} has namespaces in it")
        self.catalog.drop_namespace(namespace)

    def _refuse_managed(self, place: Place, wanted: Collection[str]) -> None:
        if wanted and ".".join(place) in self._managed():
            raise Forbidden(
                f"{'.'.join(place)} is a table of Modak's, which takes rows from others and not: {', '.join(sorted(wanted))}",
                hint="change it with `modak alter`, `modak policy` and `modak unregister`",
            )


def _place(request: CommitTableRequest) -> Place:
    return (*request.identifier.namespace.root, request.identifier.name)


def _check_names(place: Place) -> None:
    if any(_NO_NAME.search(name) for name in place):
        raise ValueError("a name has no slash and no NUL character here")
    if max(len(".".join(place[:-1])), len(place[-1])) > _NAME_CHARACTERS_MAX:
        raise ValueError(f"a name has {_NAME_CHARACTERS_MAX} characters at most here")


def _applicable(current: Table | None, updates: Sequence[TableUpdate]) -> tuple[TableUpdate, ...]:
    """Updates as the protocol means them, where PyIceberg takes them in another way."""
    if current is None:
        return tuple(updates)
    named = [change.updates for change in updates if isinstance(change, SetPropertiesUpdate)]
    known = set(current.properties).union(*named)
    return tuple(_plain(change, current, known) for change in updates)


def _plain(change: TableUpdate, current: Table, known: Collection[str]) -> TableUpdate:
    if isinstance(change, AssignUUIDUpdate) and change.uuid != current.metadata.table_uuid:
        raise ValueError(f"the table has the UUID {current.metadata.table_uuid}, and keeps it")
    if isinstance(change, AddSnapshotUpdate) and change.snapshot.parent_snapshot_id is not None:
        number, metadata = change.snapshot.sequence_number, current.metadata
        if number is not None and not isinstance(metadata, TableMetadataV1) and number <= metadata.last_sequence_number:
            # Somebody has committed to another branch: no conflict of rows, but the number is to be chosen anew.
            raise CommitFailedException(f"sequence number {number} is taken")
    if isinstance(change, RemovePropertiesUpdate):
        # What is not there is removed already.
        return change.model_copy(update={"removals": [name for name in change.removals if name in known]})
    return change


def _has_lost(cause: DBAPIError) -> bool:
    return isinstance(cause, IntegrityError) or getattr(cause.orig, "sqlstate", None) in _GIVEN_UP


def _make_folders(location: str) -> None:
    """DuckDB writes where it is told, as into an object store; on a disk the folders must be there."""
    if location.startswith("file:"):
        for name in ("data", "metadata"):
            (Path("/" + location.removeprefix("file:").lstrip("/")) / name).mkdir(parents=True, exist_ok=True)
