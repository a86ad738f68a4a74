"""Row images: corrections and captured writes hold rows as jsonb whose keys are column names. When columns change, they follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import sql

from modak.connection import Connection
from modak.core.columns import ColumnChanges
from modak.core.lake_table import Shape
from modak.core.table import Column, Name
from modak.source.expressions import encoded_key, raw, row_image
from modak.source.relation import SQL
from modak.source.spill import identifier
from modak.source.view import delta_name


def follow(connection: Connection, shape: Shape, changes: ColumnChanges) -> None:
    """Rewrite every image of a table for columns that were dropped, renamed, retyped or added. Raises Postgres's error for a value that
    the new type does not take."""
    holders = (delta_name(shape.table_id), Name("modak", "captured"))
    if changes.dropped:
        _each(connection, "image_drop", holders, shape, names=_names(column.name for column in changes.dropped))
    if changes.renamed:
        old, new = (_names(pair[side] for pair in changes.renamed) for side in (0, 1))
        _each(connection, "image_rename", holders, shape, old=old, new=new)
    for was, now in changes.retyped:
        _each(connection, "image_recast", holders, shape, column=sql.Literal(now.name), image=raw(_recast(shape, was, now)))
    if changes.added:
        nulls = sql.SQL(", ").join(sql.SQL("{}, null").format(sql.Literal(column.name)) for column in changes.added)
        empty = sql.SQL("jsonb_build_object({})").format(nulls)
        _each(connection, "image_complete", holders, shape, empty=empty, names=_names(column.name for column in changes.added))


def copy_from_heap(connection: Connection, shape: Shape, added: Sequence[Column], partitions: Iterable[Name]) -> None:
    """Give corrections of rows that stand in these partitions the values that new columns have there."""
    names = {column.name for column in added}
    image = raw(row_image([column for column in shape.columns if column.name in names], "h"))
    for partition in partitions:
        pk = raw(encoded_key(shape.primary_key, "h"))
        _each(connection, "image_from_heap", [delta_name(shape.table_id)], shape, image=image, partition=identifier(partition), pk=pk)


def _recast(shape: Shape, was: Column, now: Column) -> str:
    kept = next(column for column in shape.columns if column.name == now.name)
    collate = f" collate {sql.Identifier(*now.collation).as_string()}" if now.collation else ""
    value = f"((d.payload ->> {sql.Literal(now.name).as_string()})::{was.type.display})::{now.type.display}{collate}"
    return kept.type.image_sql.format(column=f"({value})")


def _names(names: Iterable[str]) -> sql.Literal:
    return sql.Literal(list(names))


def _each(connection: Connection, template: str, holders: Iterable[Name], shape: Shape, **parts: sql.Composable) -> None:
    for holder in holders:
        connection.execute(SQL.template(template, relation=identifier(holder), table_id=sql.Literal(shape.table_id), **parts))
