"""What every session shares about decoupled tables: their definitions, their catalogs, and the way to the journal of commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from modak.catalog import decoupled
from modak.catalog.migrate import SQL
from modak.connection import Connection, open_connection
from modak.core.decoupled import Definition
from modak.errors import LakeError, NotFound, Retry
from modak.gateway.decoupled.base import Base
from modak.gateway.decoupled.columns import check_readable
from modak.gateway.decoupled.kept import Kept
from modak.gateway.decoupled.moment import Moments
from modak.gateway.decoupled.parcels import Parcels
from modak.gateway.decoupled.settled import Settled
from modak.gateway.decoupled.waiting import Waiting
from modak.lake.iceberg import IcebergLake
from modak.lake.storage import Storage, io_properties
from modak.mesh.bakery import Bakery
from modak.scan.estimate import Estimate
from modak.scan.table import ColdTables


class TableGone(LakeError):
    """The lake table was dropped where this node did not see it, or dropped and made anew as another one."""

    code = "lake_table_gone"
    sqlstate = "42P01"
    retry = Retry.MANUAL


@dataclass
class World:
    """One per gateway; every method may be called from any thread. ``claim_seconds``: so long a writer waits for others."""

    dsn: str = field(repr=False)
    tables: ColdTables
    storage: Callable[[str], Storage]
    bakery: Bakery
    collation_is_c: bool
    claim_seconds: float = 60.0
    _lakes: dict[str, tuple[float, IcebergLake]] = field(default_factory=dict)
    _definitions: dict[int, tuple[float, Definition]] = field(default_factory=dict)
    _bases: dict[int, tuple[float, Base]] = field(default_factory=dict)
    _committed: dict[tuple[str, str], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _idle: list[tuple[float, Connection]] = field(default_factory=list)
    _beside: list[threading.Thread] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    parcels: Parcels = field(default_factory=Parcels)
    scans: Kept[tuple[str, int, bool]] = field(default_factory=Kept)
    """What the engine is asked, how many columns that has, and whether it tells the numbers of rows."""
    estimates: Kept[Estimate] = field(default_factory=Kept)

    def __post_init__(self) -> None:
        self.settled = Settled(self)
        self.waiting = Waiting()
        self.moments = Moments(self)

    def definition(self, table_id: int) -> Definition:
        with self.connection() as connection:
            found = decoupled.get(connection, table_id)
        if found is None:
            raise NotFound(
                f"no decoupled table {table_id} is known",
                hint="it was dropped, or its transaction rolled back; modak.create_iceberg_table makes one",
            )
        with self._lock:
            self._definitions[table_id] = time.monotonic() + _GUESS_SECONDS, found
        return found

    def recent_definition(self, table_id: int) -> Definition:
        """As it was a moment ago, for estimates."""
        with self._lock:
            until, known = self._definitions.get(table_id, (0.0, None))
        return known if known is not None and time.monotonic() < until else self.definition(table_id)

    def access_token(self) -> str | None:
        """By which the catalog's own views are known."""
        with self.connection() as connection:
            row = connection.execute(SQL.query("read_access_token")).fetchone()
        return str(row["token"]) if row is not None else None

    def lake(self, profile: str) -> IcebergLake:
        """With the credentials as they were a moment ago; a catalog is kept while nothing about it changes."""
        with self._lock:
            until, known = self._lakes.get(profile, (0.0, None))
        if known is not None and time.monotonic() < until:
            return known
        storage = self.storage(profile)
        if known is None or known.storage != storage:
            known = IcebergLake(storage)
        with self._lock:
            self._lakes[profile] = time.monotonic() + _STORAGE_SECONDS, known
        return known

    def base(self, definition: Definition) -> Base:
        """The table as it is now, for a transaction to read; without a commit that may yet be taken back."""
        lake = self.lake(definition.profile)
        known = self._known(definition, lake.storage)
        if known is not None:
            return known
        table = lake.find_table(definition.ref)
        if table is None:
            raise TableGone(
                f"lake table {definition.ref} of {definition.name} is not in its catalog any more",
                hint="it was dropped there, on another node or by another engine: DROP FOREIGN TABLE drops the name here as well",
                profile=definition.profile,
            )
        return self._read(definition, table, self.settled.visible(table))

    def base_at(self, definition: Definition, location: str, visible: Callable[[Table], IcebergSnapshot | None]) -> Base:
        """The table as this metadata has it; ``visible`` says which of its snapshots."""
        with self._lock:
            _, known = self._bases.get(definition.table_id, (0.0, None))
        if known is not None and known.location == location:
            current = visible(known.table)
            if (current.snapshot_id if current is not None else None) == known.snapshot_id:
                return self._note(definition, known)
        table = self.lake(definition.profile).load_at(definition.ref, location)
        return self._read(definition, table, visible(table))

    def base_as_of(self, definition: Definition, visible: Callable[[Table], IcebergSnapshot | None]) -> Base:
        """The table as the newest metadata have it; ``visible`` says which of its snapshots."""
        table = self.lake(definition.profile).load(definition.ref)
        return self._read(definition, table, visible(table))

    def _read(self, definition: Definition, table: Table, current: IcebergSnapshot | None) -> Base:
        _check_same(definition, table)
        check_readable(definition, table.metadata)
        lake = self.lake(definition.profile)
        location, number = table.metadata_location, current.sequence_number if current is not None else None
        return self._note(definition, Base.of(table, self.tables.snapshot(location, number, io_properties(lake.storage))))

    def _note(self, definition: Definition, base: Base) -> Base:
        """What has just been read, or found to be what there is."""
        with self._lock:
            self._bases[definition.table_id] = time.monotonic() + _GUESS_SECONDS, base
        return base

    def _known(self, definition: Definition, storage: Storage) -> Base | None:
        """What was read last, if the catalog still points to it; a REST catalog gives the whole metadata with its answer anyway."""
        with self._lock:
            _, known = self._bases.get(definition.table_id, (0.0, None))
        if known is None or storage.is_rest or not known.is_newest:
            return None
        namespace, name = definition.ref.split(".", 1)
        with self.connection() as connection:
            given = {"catalog": storage.catalog_name, "namespace": namespace, "name": name}
            row = connection.execute(SQL.query("lake_pointer"), given).fetchone()
        return self._note(definition, known) if row is not None and row["metadata_location"] == known.location else None

    def recent_base(self, definition: Definition) -> Base:
        """The table as it was a moment ago, for what is a guess anyway: estimates."""
        with self._lock:
            until, known = self._bases.get(definition.table_id, (0.0, None))
        return known if known is not None and time.monotonic() < until else self.base(definition)

    def likely_base(self, definition: Definition) -> Base:
        """For estimates: as a moment ago, and with what this gateway has committed since. Whoever plans right after a load should not take
        the table for empty."""
        known = self.recent_base(definition)
        if self.unmoved(definition, known) is None:
            known = self.base(definition)
            if known.snapshot_id is not None:
                self.note_commit(definition, known.snapshot_id)
        return known

    def note_commit(self, definition: Definition, snapshot_id: int) -> None:
        with self._lock:
            self._committed[definition.profile, definition.ref] = snapshot_id

    def unmoved(self, definition: Definition, base: Base | None) -> Table | None:
        """The table as it was read, if nothing is known of a commit since: then the first attempt need not look again."""
        with self._lock:
            last = self._committed.get((definition.profile, definition.ref))
        return base.table if base is not None and last in (None, base.snapshot_id) else None

    def connection(self) -> _Lent:
        """A connection in autocommit, kept a while for the next one who asks: to make one costs as much as a small commit."""
        return _Lent(self)

    def take(self) -> Connection:
        with self._lock:
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.closed:
                    return connection
        return open_connection(self.dsn, application="modak-gateway", autocommit=True)

    def give_back(self, connection: Connection, *, broken: bool) -> None:
        now = time.monotonic()
        with self._lock:
            # The one used last is taken first, so those that are too many grow old at the other end.
            unused = [one for since, one in self._idle if now - since > _IDLE_SECONDS]
            self._idle = self._idle[len(unused) :]
            if not broken and not connection.closed and len(self._idle) < _IDLE_MAX:
                self._idle.append((now, connection))
            else:
                unused.append(connection)
        for one in unused:
            one.close()

    def beside(self, work: Callable[[], None]) -> threading.Thread:
        """Work on a thread of its own, which the end of the gateway waits for."""
        thread = threading.Thread(target=work, name="modak-settle", daemon=True)
        with self._lock:
            self._beside = [one for one in self._beside if one.is_alive()]
            self._beside.append(thread)
        thread.start()
        return thread

    def close(self) -> None:
        """A transaction that Postgres is about to commit gets a moment to be settled."""
        until = time.monotonic() + _FAREWELL_SECONDS
        for thread in self._beside:
            thread.join(max(0.0, until - time.monotonic()))
        self.stopping.set()
        self.bakery.close()
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


_IDLE_MAX = 16
_IDLE_SECONDS = 30.0
_STORAGE_SECONDS = 1.0
_GUESS_SECONDS = 2.0
_FAREWELL_SECONDS = 5.0


def _check_same(definition: Definition, table: Table) -> None:
    """Columns are known by their numbers, and another table of that name may have others by these. One that is made as before will do."""
    if definition.uuid in (None, str(table.metadata.table_uuid)):
        return
    fields = {field.field_id: (field.name, str(field.field_type).replace(" ", "")) for field in table.schema().fields}
    if any(fields.get(column.field_id) != (column.name, column.lake.iceberg) for column in definition.columns):
        raise TableGone(
            f"lake table {definition.ref} of {definition.name} is another one by now, with other columns",
            hint="drop the name here, by DROP FOREIGN TABLE, and attach the lake table anew",
            profile=definition.profile,
        )


class _Lent:
    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> Connection:
        self._connection = self._world.take()
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._world.give_back(self._connection, broken=kind is not None)
