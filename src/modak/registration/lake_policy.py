"""The policy of a decoupled table: it is about maintenance alone, and stands in the properties of the Iceberg table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from modak.core.decoupled import Definition
from modak.core.maintenance import PROPERTY, Upkeep, decoupled_upkeep
from modak.errors import LakeError, ModakError, Problem, Refused
from modak.lake.failures import failures
from modak.lake.iceberg import IcebergLake
from modak.registration.policy import MAINTENANCE

_ATTEMPTS = 10


def show(properties: Mapping[str, str]) -> dict[str, Any]:
    """What holds, whoever said it."""
    return {MAINTENANCE + key: value for key, value in decoupled_upkeep(properties).as_json().items()}


def change(lake: IcebergLake, definition: Definition, wanted: Mapping[str, str]) -> Mapping[str, str]:
    """Apply key=value pairs, all or none; an empty value resets a key. The table's properties as they are then."""
    problems = []
    for key, value in wanted.items():
        try:
            if not key.startswith(MAINTENANCE):
                what = f"unknown policy key {key!r} of a decoupled table"
                problems.append(Problem("policy", what, f"known: {MAINTENANCE}…", is_usage=True))
            else:
                Upkeep.of({key.removeprefix(MAINTENANCE): value} if value else {})
        except ModakError as refused:
            problems.append(Problem("policy", f"{key}: {refused}", refused.hint, is_usage=True))
    if problems:
        raise Refused(f"the policy of {definition.name} was not changed", problems)
    for _ in range(_ATTEMPTS):
        table = lake.load(definition.ref)
        with failures(definition.ref, lake.storage):
            try:
                _set(table, {PROPERTY + key.removeprefix(MAINTENANCE): value for key, value in wanted.items()})
            except CommitFailedException:
                continue
        return lake.load(definition.ref).properties
    raise LakeError(f"others commit to {definition.ref} all the time", hint="try again")


def _set(table: Table, wanted: Mapping[str, str]) -> None:
    with table.transaction() as transaction:
        known = [name for name, value in wanted.items() if not value and name in table.properties]
        if known:
            transaction.remove_properties(*known)
        given = {name: value for name, value in wanted.items() if value}
        if given:
            transaction.set_properties(given)
