"""The part of the OpenAPI document that is about looking: tables, operations, samples, health and queries."""

from __future__ import annotations

from typing import Any

from modak.core.operation import OperationKind, Phase
from modak.core.partition import PartitionState
from modak.web.console.query import CELL_CHARACTERS_MAX, RESULT_BYTES_MAX, ROWS_MAX, STATEMENT_CHARACTERS_MAX
from modak.worker.samples import METRICS

Part = dict[str, Any]


def _object(**properties: Part) -> Part:
    """Every field is always there; one without a value is null."""
    return {"type": "object", "required": list(properties), "additionalProperties": False, "properties": properties}


def _kind(name: str, description: str = "", *, null: bool = False) -> Part:
    made: Part = {"type": [name, "null"] if null else name}
    return made | {"description": description} if description else made


def _list(items: Part) -> Part:
    return {"type": "array", "items": items}


def _ref(name: str) -> Part:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Part) -> Part:
    return {"anyOf": [schema, {"type": "null"}]}


_TEXT, _WHOLE, _NUMBER, _TRUTH = _kind("string"), _kind("integer"), _kind("number"), _kind("boolean")
_TEXT_OR_NULL, _WHOLE_OR_NULL, _NUMBER_OR_NULL = (_kind(name, null=True) for name in ("string", "integer", "number"))
_MOMENT: Part = {"type": "string", "format": "date-time"}
_MOMENT_OR_NULL: Part = {"type": ["string", "null"], "format": "date-time"}
_KEY = _kind("integer", "canonical: the number itself, microseconds or days since 1970")
_COUNTS: Part = {"type": "object", "additionalProperties": _WHOLE}
_ANYTHING: Part = {"type": "object", "additionalProperties": True}

_CUTLINE = _object(
    t=_kind("string", "as Postgres prints it", null=True),
    tier_key_hi=_kind("integer", null=True),
    s=_kind("integer", "the lake's version that belongs to T", null=True),
    r=_kind("string", "rows below it have expired", null=True),
    retention_line=_WHOLE_OR_NULL,
    updated_at=_MOMENT_OR_NULL,
)
_MIRROR = _object(
    state={"enum": ["followed", "copying", "parked"]},
    frontier=_kind("string", "F, a WAL position", null=True),
    lag_bytes=_WHOLE,
    lag_seconds=_NUMBER,
    retained_bytes=_WHOLE,
)
_FIGURES = _object(**dict.fromkeys(METRICS, _NUMBER_OR_NULL))
_LINE: Part = {
    "table": _kind("string", "schema.table, quoted where Postgres would have to"),
    "mode": {"enum": ["tiered", "mirrored"]},
    "surface": {"enum": ["view", "heap"]},
    "enabled": _TRUTH,
    "tier_key_type": _TEXT,
    "cutline": _CUTLINE,
    "partition_states": _COUNTS,
    "delta_rows": _WHOLE,
    "staged_loads": _WHOLE,
    "read_pins": _WHOLE,
    "copying": _TRUTH,
    "mirror": _or_null(_MIRROR),
    "problem_count": _WHOLE,
    "open_operations": _list(_ANYTHING),
    "figures": _or_null(_FIGURES),
}
_DECOUPLED = _object(
    table=_TEXT,
    mode={"enum": ["decoupled"]},
    lake_table=_kind("string", "namespace.table in the Iceberg catalog"),
    profile=_TEXT,
    partition_by=_list(_TEXT),
    is_attached=_TRUTH,
    rows=_WHOLE_OR_NULL,
    bytes=_WHOLE_OR_NULL,
    files=_WHOLE_OR_NULL,
    error=_kind("string", "why the lake did not tell", null=True),
)
_PARTITION = _object(
    **{
        "name": _TEXT,
        "from": _TEXT,
        "to": _TEXT,
        "tier_key_lo": _KEY,
        "tier_key_hi": _KEY,
        "state": {"enum": [state.value for state in PartitionState]},
        "rows": _kind("integer", "counted where it was tiered, else Postgres's estimate", null=True),
        "bytes": _kind("integer", "in the heap, with indexes", null=True),
    }
)
_PROBLEM = _object(
    table=_TEXT, job=_TEXT, code=_TEXT, message=_TEXT, hint=_TEXT_OR_NULL, attempts=_WHOLE, first_seen=_MOMENT, last_seen=_MOMENT
)
_PIN = _object(table=_TEXT, holder=_TEXT, snapshot=_WHOLE_OR_NULL, created_at=_MOMENT, expires_at=_MOMENT)
_OPERATION = _object(
    table=_TEXT,
    op_id=_TEXT,
    op_kind={"enum": [kind.value for kind in OperationKind]},
    phase={"enum": [phase.value for phase in Phase]},
    snapshot=_WHOLE_OR_NULL,
    worker=_TEXT,
    started_at=_MOMENT,
    updated_at=_MOMENT,
    seconds=_NUMBER,
    tier_key_type=_TEXT,
    old_tier_key_hi=_WHOLE_OR_NULL,
    new_tier_key_hi=_WHOLE_OR_NULL,
    rows=_WHOLE_OR_NULL,
    from_t=_TEXT_OR_NULL,
    to_t=_TEXT_OR_NULL,
)
_ERRAND = _object(
    number=_WHOLE,
    table=_TEXT,
    job=_TEXT,
    asked_at=_MOMENT,
    state={"enum": ["waiting", "running", "done", "failed"]},
    began_at=_MOMENT_OR_NULL,
    ended_at=_MOMENT_OR_NULL,
    message=_TEXT,
    hint=_TEXT_OR_NULL,
)
_SNAPSHOT = _object(
    sequence_number=_kind("integer", "what the cut-line calls S"),
    snapshot_id=_WHOLE,
    at=_MOMENT,
    operation=_TEXT,
    op_id=_TEXT_OR_NULL,
    added_rows=_WHOLE,
    deleted_rows=_WHOLE,
    total_rows=_WHOLE_OR_NULL,
    total_bytes=_WHOLE_OR_NULL,
    is_published=_TRUTH,
)
_LAKE = _object(
    location=_TEXT,
    totals=_object(rows=_WHOLE, bytes=_WHOLE, data_files=_WHOLE, delete_files=_WHOLE),
    snapshots=_list(_SNAPSHOT),
    files=_or_null(_list(_object(name=_TEXT, kind={"enum": ["data", "deletes"]}, rows=_WHOLE, bytes=_WHOLE, partition=_TEXT))),
    bands=_list(_object(partition=_TEXT, files=_WHOLE, bytes=_WHOLE)),
)
_WORKERS = _object(
    leader=_or_null(
        _object(
            holder=_TEXT,
            host=_TEXT,
            pid=_WHOLE,
            epoch=_WHOLE,
            since=_MOMENT,
            seen_at=_kind("string", "its last sign of life") | {"format": "date-time"},
            leads=_kind("boolean", "false: its place is free, and it led last"),
            is_this=_kind("boolean", "it is the worker that answers"),
        )
    ),
    standbys=_list(_object(holder=_TEXT, since=_MOMENT_OR_NULL, is_this=_TRUTH)),
)
_HEALTH = _object(
    status={"enum": ["ok", "failing"]},
    role={"enum": ["leader", "standby", "server"]},
    reasons=_list(_TEXT),
    postgres={"enum": ["up", "slow", "away"]},
    tables=_WHOLE_OR_NULL,
    problems=_WHOLE_OR_NULL,
    stuck=_list(_object(table=_TEXT, kind=_TEXT, phase=_TEXT, quiet_seconds=_WHOLE)),
    leader=_or_null(_object(holder=_TEXT, is_this=_TRUTH, seen_seconds=_kind("number", "seconds since its last sign of life"))),
    lag=_or_null(
        _object(partitions_due=_WHOLE_OR_NULL, delta_rows=_WHOLE, staged_loads=_WHOLE, mirror_bytes=_WHOLE_OR_NULL),
    ),
    since=_kind("number", "seconds of the epoch", null=True),
    last_cycle=_kind("number", "seconds of the epoch", null=True),
)

SCHEMAS: Part = {
    "Health": _HEALTH,
    "Worker": _object(
        role={"enum": ["leader", "standby", "server"]},
        epoch=_kind("integer", "number of its leadership", null=True),
        since=_MOMENT_OR_NULL,
        last_cycle=_MOMENT_OR_NULL,
        running=_list(_object(table=_TEXT, job=_TEXT, since=_MOMENT_OR_NULL)),
        failures=_list(_object(table=_TEXT, message=_TEXT, next_attempt=_MOMENT_OR_NULL)),
        waits=_list(_object(table=_TEXT, reason=_TEXT)),
        errands=_list(_ERRAND),
        workers=_or_null(_WORKERS),
        health=_ref("Health"),
    ),
    "Tables": _object(tables=_list(_object(**_LINE)), decoupled=_list(_DECOUPLED)),
    "Table": _object(
        **_LINE,
        settings=_ANYTHING,
        policy=_ANYTHING,
        partitions=_list(_PARTITION),
        problems=_list(_PROBLEM),
        pins=_list(_PIN),
        waits=_list(_kind("string", "who keeps tiered partitions from being dropped")),
        operations=_list(_OPERATION),
        maintenance_requested=_or_null(_object(requested_by=_TEXT, requested_at=_MOMENT)),
        errands=_list(_ERRAND),
        lake={"anyOf": [_LAKE, _object(error=_TEXT, hint=_TEXT_OR_NULL), {"type": "null"}]},
    ),
    "Operations": _object(operations=_list(_OPERATION)),
    "Samples": _object(
        table=_TEXT,
        kept=_TEXT,
        series=_object(**{name: _list(_list(_NUMBER)) for name in METRICS}),
    ),
    "Rows": _object(
        columns=_list(_TEXT),
        rows=_list(_list(_kind("string", "as Postgres prints it; null is NULL", null=True))),
        truncated=_kind("boolean", "there are more rows than these"),
        truncated_by={
            "enum": ["rows", "bytes", None],
            "description": f"the limit they met: {ROWS_MAX} rows, or {RESULT_BYTES_MAX:,} bytes",
        },
        values_cut=_kind(
            "integer", f"values of more than {CELL_CHARACTERS_MAX:,} characters, of which these are the first, with … behind them"
        ),
        seconds=_NUMBER,
        engine={"enum": ["gateway", "postgres"]},
        note=_TEXT_OR_NULL,
        tiers=_list({"enum": ["hot", "cold", "corrections", "lake"]}),
        route=_list(_kind("string", "what modak explain prints")),
    ),
}
_ERRORS = {
    "400": "the request is wrong, or the query failed",
    "401": "the password is missing or wrong",
    "403": "the console is off, or only shows",
    "404": "the table is not registered",
    "405": "the method is not for this address",
    "408": "the body did not arrive in time",
    "413": "the body is too large",
    "415": "the content type is not known",
    "429": "too many wrong passwords; Retry-After says when to come back",
    "503": "Postgres is away",
}
_SECURITY: list[Part] = [{"basic": []}, {"session": []}]
_TABLE: Part = {"name": "table", "in": "path", "required": True, "description": "schema.table", "schema": _TEXT}


def _answers(description: str, schema: str, *errors: str) -> Part:
    answers: Part = {"200": {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}}
    for status in sorted({"401", "403", "405", "429", "503", *errors}):
        answers[status] = {"description": _ERRORS[status], "content": {"application/json": {"schema": _ref("Error")}}}
    return answers


def _get(name: str, summary: str, schema: str, *errors: str, parameters: list[Part] | None = None) -> Part:
    made = {"operationId": name, "summary": summary, "security": _SECURITY, "responses": _answers(summary, schema, *errors)}
    return {"get": made | ({"parameters": parameters} if parameters else {})}


def _asked(name: str, description: str, schema: Part) -> Part:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_QUERY = _object(sql={"type": "string", "minLength": 1, "maxLength": STATEMENT_CHARACTERS_MAX})
PATHS: Part = {
    "/healthz": {
        "get": {
            "operationId": "health",
            "summary": "Whether this worker does its work; without a password",
            "responses": {
                status: {"description": told, "content": {"application/json": {"schema": _ref("Health")}}}
                for status, told in (("200", "it does, as leader, standby or server only"), ("503", "it does not, and reasons say why"))
            },
        }
    },
    "/api/v1/worker": _get("worker", "What this worker does", "Worker"),
    "/api/v1/tables": _get("tables", "Every registered table, and those that are in the lake only", "Tables"),
    "/api/v1/tables/{table}": _get("table", "Everything about one table", "Table", "400", "404", parameters=[_TABLE]),
    "/api/v1/operations": _get(
        "operations",
        "The journal, newest first",
        "Operations",
        "400",
        "404",
        parameters=[
            _asked("table", "of this table only", _TEXT),
            _asked("kind", "of this kind only", {"enum": [kind.value for kind in OperationKind]}),
            _asked("before", "started before this moment", _MOMENT),
            _asked("limit", "at most so many", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}),
        ],
    ),
    "/api/v1/samples/{table}": _get(
        "samples", "Figures over time, as far as this worker remembers", "Samples", "400", "404", parameters=[_TABLE]
    ),
    "/api/v1/sql": {
        "post": {
            "operationId": "sql",
            "summary": "One query, read only",
            "security": _SECURITY,
            "requestBody": {"required": True, "content": {"application/json": {"schema": _QUERY}}},
            "responses": _answers("its rows", "Rows", "400", "408", "413", "415"),
        }
    },
}
SECURITY_SCHEMES: Part = {
    "basic": {"type": "http", "scheme": "basic", "description": "any name, and MODAK_CONSOLE_PASSWORD"},
    "session": {"type": "apiKey", "in": "cookie", "name": "modak_session"},
}
