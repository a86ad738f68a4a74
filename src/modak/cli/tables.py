"""A job for one table, or for each of many: what the commands that run jobs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from modak.catalog.tables import Registered
    from modak.cli.context import Context
    from modak.core.table import Name
    from modak.errors import ModakError
    from modak.jobs.context import JobContext

T = TypeVar("T")


def is_tiered(table: Registered) -> bool:
    return table.mode == "tiered"


def has_seam(table: Registered) -> bool:
    return table.has_seam


def names(context: Context, table: str | None, chosen: Callable[[Registered], bool] = is_tiered) -> list[Name]:
    """The named table, or every enabled one that is ``chosen``."""
    from modak.catalog import tables
    from modak.source.relation import parse_name

    if table is not None:
        return [parse_name(table)]
    with context.app.connection() as connection:
        return [found.name for found in tables.listing(connection) if found.enabled and chosen(found)]


def each(
    context: Context,
    table: str | None,
    work: Callable[[Name, JobContext], T],
    chosen: Callable[[Registered], bool] = is_tiered,
    wait_seconds: float = 0.0,
) -> tuple[list[T], ModakError | None]:
    """The job's result for each table, and what failed last. One table's failure is that table's: the others go on.

    Of a table that was named a failure is raised at once.
    """
    from modak.errors import ModakError

    done, failed = list[T](), None
    for name in names(context, table, chosen):
        try:
            with context.app.job(name, wait_seconds=wait_seconds) as job:
                if not chosen(job.table):
                    refuse_mirrored(job)
                done.append(work(name, job))
        except ModakError as error:
            if table is not None:
                raise
            failed = error
            context.output.note(f"{name}: {error}")
    return done, failed


def refuse_mirrored(job: JobContext) -> None:
    from modak.errors import Refused

    if job.table.mode == "mirrored":
        raise Refused(
            f"{job.table.name} is mirrored, and this job is for tiered tables", hint=f"`modak mirror {job.table.name}` follows it"
        )
