"""Tables that other nodes of the mesh have made: attached here, and let go of when they are dropped.

Peers tell of them by rows that travel with their claims (``modak.shared_tables``). What was told once is done once: whoever drops the
foreign table here keeps it dropped. A table goes from here only if its maker says so and the catalog does not have it any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg

from modak.catalog.migrate import SQL
from modak.errors import ModakError
from modak.lake.decoupled import MODE_STAMP

if TYPE_CHECKING:
    from modak.gateway.decoupled.world import World

log = logging.getLogger("modak.gateway")
Share = dict[str, Any]
# How long until what failed is tried again.
_AGAIN_SECONDS = 10.0


class NotShared(ModakError):
    """A peer has a table that is not in the catalog of this node."""

    code = "catalog_not_shared"
    sqlstate = "55000"


def follow_peers(world: World) -> int:
    """How many tables came or went."""
    with world.connection() as connection:
        shares = connection.execute(SQL.query("tables_to_follow"), {"seconds": _AGAIN_SECONDS}).fetchall()
    return sum(_done(world, share) for share in shares)


def _done(world: World, share: Share) -> bool:
    try:
        if not share["is_dropped"]:
            _check_shared(world, share)
        elif not _is_gone(world, share):
            # The maker's gateway is about to drop it, or somebody else of that name has been quicker.
            _note(world, share, None, None)
            return False
        with world.connection() as connection, connection.transaction():
            connection.add_notice_handler(_tell)
            try:
                connection.execute(SQL.query("unfollow_table" if share["is_dropped"] else "follow_table"), share)
            finally:
                connection.remove_notice_handler(_tell)
    except ModakError as cause:
        _fail(world, share, str(cause), cause.hint)
    except psycopg.Error as cause:
        _fail(world, share, str(cause.diag.message_primary or cause).strip(), cause.diag.message_hint)
    else:
        log.info("table %s of node %s is %s", share["ref"], share["node"], "let go of" if share["is_dropped"] else "attached")
        return True
    return False


def _check_shared(world: World, share: Share) -> None:
    """The maker's lake had it before its Postgres told anybody."""
    lake = world.lake(share["profile"])
    table = lake.find_table(share["ref"])
    if table is not None and table.properties.get(MODE_STAMP) == "decoupled":
        return
    own = (
        "has another REST catalog, or another warehouse of it" if lake.storage.is_rest else "has a catalog of its own, in its own database"
    )
    raise NotShared(
        f"node {share['node']} has made lake table {share['ref']}, and the catalog of this node does not have it: this node {own}",
        hint="all nodes of a mesh must share one Iceberg catalog (MODAK_CATALOG): see docs/guides/mesh.md",
    )


def _is_gone(world: World, share: Share) -> bool:
    if share["own_table_id"] is None:
        return True
    table = world.lake(share["profile"]).find_table(share["ref"])
    return table is None or str(table.metadata.table_uuid) != share["uuid"]


def _fail(world: World, share: Share, problem: str, hint: str | None) -> None:
    if share["told"] != problem:
        doing = "let go of" if share["is_dropped"] else "attached"
        log.warning("table %s of node %s cannot be %s: %s", share["ref"], share["node"], doing, problem)
    _note(world, share, problem, hint)


def _note(world: World, share: Share, problem: str | None, hint: str | None) -> None:
    with world.connection() as connection:
        connection.execute(SQL.query("note_not_followed"), {**share, "problem": problem, "hint": hint})


def _tell(notice: psycopg.errors.Diagnostic) -> None:
    log.info("%s", notice.message_primary)
