"""Large values that the stream does not repeat, read from the heap while a resumed copy settles.

The heap may be ahead of the stream by then. What happened since is still to come in the stream, and the mirror has settled only when all of
it has been applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from modak.core.changes import UNCHANGED, Key, Last, Value
from modak.core.table import Column
from modak.jobs.context import JobContext
from modak.jobs.mirroring.follower import Follower
from modak.source.relation import find_by_oid
from modak.source.replication import inserted_lsn
from modak.source.spill import identifier


def from_heap(context: JobContext, follower: Follower, rows: Sequence[tuple[Key, Last]]) -> tuple[int, dict[Key, Last]]:
    """The rows with their missing values, and the place in the stream up to which the heap was seen.

    A row that is gone, or whose column is, has been deleted or changed since: the stream will say so, and until then it is left out.
    """
    now = {column.number: column for column in context.relation().columns}
    heap = find_by_oid(context.connection, context.table_id)
    found = {}
    for key, last in rows:
        row = last.row or ()
        missing = [place for place, value in enumerate(row) if value is UNCHANGED]
        columns = [now.get(follower.shape[place].number) for place in missing]
        values = _read(context, follower, heap, key, [column for column in columns if column]) if heap and all(columns) else None
        if values is None:
            found[key] = Last(None, True)
        else:
            filled = dict(zip(missing, values, strict=True))
            found[key] = Last(tuple(filled.get(place, value) for place, value in enumerate(row)), True)
    return inserted_lsn(context.connection), found


def _read(context: JobContext, follower: Follower, heap: object, key: Key, columns: Sequence[Column]) -> list[Value] | None:
    from modak.core.table import Name

    assert isinstance(heap, Name)
    items = [
        sql.SQL("case when {0} is null then null else convert_to(concat({0}), 'UTF8') end").format(sql.Identifier(column.name))
        for column in columns
    ]
    names = follower.table.primary_key_cols
    types = {column.name: column.type.display for column in follower.columns}
    same = [sql.SQL("{} = %s::{}").format(sql.Identifier(name), sql.SQL(types[name])) for name in names]
    query = sql.SQL("select array[{}]::bytea[] as found from {} where {}").format(
        sql.SQL(", ").join(items), identifier(heap), sql.SQL(" and ").join(same)
    )
    row = context.connection.execute(query, [part.decode() for part in key]).fetchone()
    return list(row["found"]) if row else None
