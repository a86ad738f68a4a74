"""Names of files: as Iceberg writes them and as DuckDB opens them. Pure."""

from __future__ import annotations

from modak.errors import LakeError

_S3 = ("s3a://", "s3n://", "s3://")
_WILDCARDS = "*?["


def readable(location: str) -> str:
    """A location as DuckDB opens it: Spark writes file:/x where PyIceberg writes file:///x, and both mean /x."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    for scheme in _S3:
        if location.startswith(scheme):
            return "s3://" + location.removeprefix(scheme)
    if "://" in location:
        raise LakeError("the gateway cannot read from this kind of storage", hint="use file: or s3: warehouses", location=location)
    return location


def without_globs(path: str) -> str:
    """The path as a pattern that matches nothing but itself: DuckDB takes every path with a wildcard for a pattern."""
    if not any(wildcard in path for wildcard in _WILDCARDS):
        return path
    if "\\" in path:
        # DuckDB splits patterns at backslashes as well, so there is no way to write this one.
        raise LakeError("a path with a backslash and a wildcard cannot be read", hint="move the warehouse to a plainer folder", path=path)
    return "".join(f"[{letter}]" if letter in _WILDCARDS else letter for letter in path)
