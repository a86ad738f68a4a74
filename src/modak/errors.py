"""The error tree. Every error says what happened, where, and what to do next.

One class carries one stable ``code`` (for scripts), one SQLSTATE (for SQL clients), one retry class (for the worker)
and one exit code (for the CLI), so that the same failure reads the same at every door.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Retry(enum.Enum):
    """What a worker may do about an error without a person."""

    NOW = "now"  # a race was lost: try the same step again
    LATER = "later"  # something outside is missing: back off
    MANUAL = "manual"  # a person must act; keep the table parked until then


class ModakError(Exception):
    """Base of everything Modak raises on purpose."""

    code = "error"
    sqlstate = "XX000"
    retry = Retry.MANUAL
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = {name: value for name, value in facts.items() if value is not None}

    def __str__(self) -> str:
        where = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.message} ({where})" if where else self.message

    def as_dict(self) -> dict[str, object]:
        """The shape of an error in ``--json`` output and in HTTP answers."""
        facts = {name: value if isinstance(value, int | str | bool) else str(value) for name, value in self.facts.items()}
        return {"error": self.code, "message": self.message, "hint": self.hint, "facts": facts}


class UsageError(ModakError):
    """The command or setting itself is wrong; nothing was attempted."""

    code = "usage"
    sqlstate = "22023"
    exit_code = 2


class MissingComponent(ModakError):
    """A part of the machine that Modak needs is absent or unusable."""

    code = "missing_component"
    sqlstate = "58000"
    retry = Retry.LATER


class SparkLost(ModakError):
    """Spark's Java process died, or its server let the session go, while a job needed it; the next attempt starts it anew."""

    code = "spark_lost"
    sqlstate = "58000"
    retry = Retry.LATER


class ConnectionFailed(ModakError):
    """Postgres does not answer or refuses us."""

    code = "connection_failed"
    sqlstate = "08001"
    retry = Retry.LATER


class CatalogError(ModakError):
    """The catalog ``modak.*`` is not in a state this program can work with."""

    code = "catalog"
    sqlstate = "55000"


class CatalogMissing(CatalogError):
    """There is no catalog here, or one older than this program needs."""

    code = "catalog_missing"


class CatalogNewer(CatalogError):
    """The database was migrated by a newer Modak; an older one must not touch it."""

    code = "catalog_newer"


class MigrationChanged(CatalogError):
    """A migration that was applied differs from the one this program carries."""

    code = "migration_changed"


class DatabaseMoved(CatalogError):
    """The catalog came here by a restore or a copy, and was not reconciled with this database yet."""

    code = "database_moved"


class LockNotAvailable(ModakError):
    """A bounded wait for a lock ran out; nothing was changed."""

    code = "lock_not_available"
    sqlstate = "55P03"
    retry = Retry.LATER


class LeadershipLost(ModakError):
    """The session or the worker that wanted to publish is not the one that may; nothing was changed."""

    code = "leadership_lost"
    sqlstate = "55000"
    retry = Retry.LATER


class MeshSplit(ModakError):
    """The node hears too few of its mesh to know that nobody else writes; nothing was changed."""

    code = "mesh_split"
    sqlstate = "55000"
    retry = Retry.LATER


class ClaimLost(ModakError):
    """A writer's turn at an Iceberg table ended before its commit; nothing was changed."""

    code = "claim_lost"
    sqlstate = "40001"
    retry = Retry.NOW


class ClaimCancelled(ModakError):
    """A wait for the turn at an Iceberg table was cancelled; nothing was changed."""

    code = "claim_cancelled"
    sqlstate = "57014"
    retry = Retry.NOW


class NotRegistered(ModakError):
    """The table is not under Modak."""

    code = "not_registered"
    sqlstate = "42P01"


class PartialRegistration(ModakError):
    """A mirrored table that was registered and never copied: there is nothing to follow, and nothing to go on with."""

    code = "partial_registration"
    sqlstate = "55000"


class NotFound(ModakError):
    """What was named does not exist."""

    code = "not_found"
    sqlstate = "42P01"


class ViewMissing(ModakError):
    """The two-tier view of a registered table is gone, and with it the name or the way to the cold rows."""

    code = "view_missing"
    sqlstate = "42P01"


class Refused(ModakError):
    """A request that is wrong in one or more ways; all of them are listed, and nothing was changed. Exit code 2 if only arguments are."""

    code = "refused"
    sqlstate = "0A000"

    def __init__(self, message: str, problems: Iterable[Problem] = (), *, hint: str | None = None, **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.problems = tuple(problems)
        if self.problems and all(problem.is_usage for problem in self.problems):
            self.exit_code = UsageError.exit_code

    def __str__(self) -> str:
        lines = [super().__str__()]
        lines += [f"  - {problem}" for problem in self.problems]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        return super().as_dict() | {"problems": [problem.as_dict() for problem in self.problems]}


class Problem:
    """One reason for a refusal, with the way out of it. ``is_usage``: it lies in what was asked for, whatever the table is like."""

    def __init__(self, code: str, message: str, hint: str | None = None, *, is_usage: bool = False) -> None:
        self.code = code
        self.message = message
        self.hint = hint
        self.is_usage = is_usage

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __repr__(self) -> str:
        return f"Problem({self.code!r}, {self.message!r})"

    def as_dict(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


class KeyShared(Refused):
    """Two rows have one key, a hot one and a cold one. Moved to the lake, one of them would take the other's place."""

    code = "key_shared"
    sqlstate = "23505"


class ValueRefused(ModakError):
    """A value that the target type cannot hold exactly."""

    code = "value_refused"
    sqlstate = "22003"


class IllegalTransition(ModakError):
    """A state change that the life cycle does not know."""

    code = "illegal_transition"
    sqlstate = "55000"


class CutlineMoved(ModakError):
    """Somebody else moved the cut-line between our look and our step."""

    code = "cutline_moved"
    sqlstate = "40001"
    retry = Retry.NOW


class CutlineRegression(ModakError):
    """T or S would have gone backwards."""

    code = "cutline_regression"
    sqlstate = "55000"


class LakeError(ModakError):
    """The lake (Iceberg catalog or storage) refused or failed."""

    code = "lake"
    sqlstate = "58030"
    retry = Retry.LATER
    may_arrive = False  # a commit was sent, and nothing says that it will not be carried out yet


class LakeFull(LakeError):
    """There is no room left where the lake's files go."""

    code = "lake_full"
    sqlstate = "53100"


class CommitUnknown(LakeError):
    """The catalog did not say whether a commit happened, and cannot be asked now. The stamp tells, when it can be read again."""

    code = "commit_unknown"
    may_arrive = True


class LakeTableExists(LakeError):
    """The name is taken in the lake; what is there stays as it is."""

    code = "lake_table_exists"
    sqlstate = "42P07"
    retry = Retry.MANUAL


class LakeTaken(LakeError):
    """Another database has the lake table; nothing is written there from here."""

    code = "lake_taken"
    sqlstate = "55000"
    retry = Retry.MANUAL
