"""Every named query prepares on a real database: no typing mistake waits for its first use."""

from __future__ import annotations

import re

import psycopg
import pytest

from modak.connection import Connection
from modak.embedded.postgres import Cluster
from modak.sqlfiles import SqlFiles

PACKAGES = ("modak.catalog", "modak.source", "modak.demo")
QUERIES = [(package, name, text) for package in PACKAGES for name, text in SqlFiles(package).queries.items()]
# Not one statement with parameters but a script, which no server prepares; the demo's own tests run it.
SCRIPTS = {"create_orders"}


def prepared(text: str) -> str:
    """psycopg's %(name)s as $1, $2 …"""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(r"%\((\w+)\)s", number, text).replace("%%", "%")


@pytest.fixture(scope="module")
def database(cluster: Cluster, template: str) -> str:
    """One database for all of them; each test rolls back."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(f"create database named_queries template {template}")
    return cluster.dsn("named_queries")


# A script of several statements cannot be prepared; the demo runs it, and so does the fixture of its neighbours here.
PREPARABLE = [query for query in QUERIES if query[1] not in SCRIPTS]


@pytest.mark.parametrize(("package", "name", "text"), PREPARABLE, ids=[f"{package}.{name}" for package, name, _ in PREPARABLE])
def test_it_prepares(database: str, package: str, name: str, text: str) -> None:
    with psycopg.connect(database) as connection:
        if package == "modak.demo":
            connection.execute(SqlFiles("modak.demo").query("create_orders"))
        if "pg_stat_statements" in text:
            connection.execute("create extension pg_stat_statements schema public")
        else:
            connection.execute("set local search_path = pg_catalog, pg_temp")
        connection.execute("prepare it as " + prepared(text))  # type: ignore[call-overload]
        connection.rollback()


def test_placeholders_become_numbers_once_each() -> None:
    assert prepared("select %(a)s, %(b)s, %(a)s, 5 %% 2, format('%%I')") == "select $1, $2, $1, 5 % 2, format('%I')"


def test_no_query_name_stands_in_two_packages() -> None:
    names = [name for _, name, _ in QUERIES]
    assert len(names) == len(set(names))


def test_every_query_names_the_schema_of_its_tables(connection: Connection) -> None:
    """The search path is pg_catalog: a bare name would be looked up nowhere, or in a user's temporary schema."""
    connection.execute("create temporary table tables (schema_name text)")
    for package, name, text in QUERIES:
        assert not re.search(r"\b(from|join|into|update)\s+(tables|cutline|partitions|delta|op_log|read_pins)\b", text), f"{package}.{name}"
