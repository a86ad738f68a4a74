"""The OpenAPI document of what the worker serves. Written by hand: it is a promise, and tests hold the server to it."""

from __future__ import annotations

from typing import Any

from modak.load.request import LABEL_BYTES_MAX
from modak.web import openapi_console

Part = dict[str, Any]


def _text(description: str, *, nullable: bool = False) -> Part:
    return {"type": ["string", "null"] if nullable else "string", "description": description}


_COUNT = {"type": "integer", "minimum": 0}
_RESULT: Part = {
    "type": "object",
    "required": ["label", "state", "hot_rows", "delta_rows", "spooled_rows", "staged_files", "replay"],
    "additionalProperties": False,
    "properties": {
        "label": {"type": "string"},
        "state": {
            "enum": ["committed", "staged"],
            "description": "committed: all rows are visible; staged: cold volume waits for adoption",
        },
        "hot_rows": {**_COUNT, "description": "rows at or above the cut-line, written to the heap"},
        "delta_rows": {**_COUNT, "description": "cold rows that became corrections"},
        "spooled_rows": {**_COUNT, "description": "cold rows that became staged files"},
        "staged_files": {"type": "array", "items": {"type": "string"}},
        "replay": {"type": "boolean", "description": "the label was applied before, and nothing ran now"},
        "warning": _text("there when the label came back with other rows"),
    },
}
_ERROR: Part = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint", "line", "column", "value"],
            "additionalProperties": False,
            "properties": {
                "code": _text("stable, for programs"),
                "message": _text("what happened"),
                "hint": _text("what to do about it", nullable=True),
                "line": {"type": ["integer", "null"], "description": "counts from 1"},
                "column": _text("name of the column", nullable=True),
                "value": _text("the value as it was given, cut if it is long", nullable=True),
            },
        }
    },
}
_ERRORS = {
    "400": "the batch or the request is wrong; nothing is recorded: correct it and use the same label",
    "401": "the token is missing or wrong",
    "404": "the table is not registered",
    "405": "the method is not for this address; Allow names the one that is",
    "408": "the request did not arrive in time",
    "409": "the label is being applied right now; load it again in a moment",
    "413": "the body is too large, compressed or decompressed",
    "415": "the content type or encoding is not known",
    "429": "too many loads are under way; Retry-After says when to come back",
    "503": "Postgres or the gateway is away, or the server is stopping; Retry-After says when to come back",
}
_WAIT = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}


def _answers(description: str, schema: str, *errors: str) -> Part:
    answers: Part = {
        "200": {"description": description, "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}}
    }
    for status in errors:
        answers[status] = {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            **({"headers": _WAIT} if status in ("409", "429", "503") else {}),
        }
    return answers


_LINES = {"schema": {"type": "string", "description": "JSON lines: one object per line, keys are column names"}}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_TABLE: Part = {
    "name": "table",
    "in": "path",
    "required": True,
    "description": "schema.table, the registered name",
    "schema": {"type": "string", "examples": ["public.events"]},
}
_LABEL = {"type": "string", "minLength": 1, "maxLength": LABEL_BYTES_MAX}
_SECURITY: list[Part] = [{"token": []}, {"bearer": []}]

DOCUMENT: Part = {
    "openapi": "3.1.0",
    "info": {"title": "Modak", "version": "1", "description": "Stream Load, and what there is to see."},
    "paths": {
        "/api/load/{table}": {
            "post": {
                "operationId": "load",
                "summary": "Apply a batch, or answer with what its label has recorded",
                "security": _SECURITY,
                "parameters": [
                    _TABLE,
                    {
                        "name": "X-Modak-Label",
                        "in": "header",
                        "required": True,
                        "description": "unique for ever per table",
                        "schema": _LABEL,
                    },
                    {"name": "Content-Encoding", "in": "header", "schema": {"enum": ["identity", "gzip", "zstd"]}},
                ],
                "requestBody": {
                    "content": {
                        "application/x-ndjson": _LINES,
                        "application/jsonl": _LINES,
                        "application/json": _LINES,
                        "application/vnd.apache.parquet": _BINARY,
                        "application/vnd.apache.arrow.stream": _BINARY,
                        "application/vnd.apache.arrow.file": _BINARY,
                    }
                },
                "responses": _answers("applied, or replayed", "Result", *_ERRORS),
            }
        },
        "/api/load/{table}/{label}": {
            "get": {
                "operationId": "find",
                "summary": "What is recorded of a label",
                "security": _SECURITY,
                "parameters": [_TABLE, {"name": "label", "in": "path", "required": True, "schema": _LABEL}],
                "responses": _answers("applied before", "Result", "400", "401", "404", "405", "408", "503"),
            }
        },
        "/metrics": {
            "get": {"operationId": "metrics", "summary": "Figures for Prometheus", "responses": {"200": {"description": "as text"}}}
        },
        **openapi_console.PATHS,
    },
    "components": {
        "schemas": {"Result": _RESULT, "Error": _ERROR, **openapi_console.SCHEMAS},
        "securitySchemes": {
            "token": {"type": "apiKey", "in": "header", "name": "X-Modak-Token"},
            "bearer": {"type": "http", "scheme": "bearer"},
            **openapi_console.SECURITY_SCHEMES,
        },
    },
}
