"""Postgres SQL for DuckDB: translated where the answer is known to be Postgres's, refused with ``Untranslatable`` everywhere else.

``parse``       text to a tree in which nothing was guessed
``remote``      what postgres_fdw sends, taken apart; ``predicates`` are its conditions that file statistics can refute
``expression``  one expression; ``query`` a whole SELECT; ``output`` values as the text Postgres sends
``functions``   what a DuckDB connection must know first; ``errors`` what a failed query means to a Postgres client
"""

from modak.gateway.dialect.errors import RuntimeProblem, Untranslatable, runtime_problem
from modak.gateway.dialect.expression import Scope, Typed, translate
from modak.gateway.dialect.functions import register_functions
from modak.gateway.dialect.output import text_sql
from modak.gateway.dialect.parse import parse, parse_expression
from modak.gateway.dialect.predicates import predicates
from modak.gateway.dialect.query import Catalog, CatalogRelation, TranslatedQuery, as_text, translate_query
from modak.gateway.dialect.remote import RemoteSelect, parse_remote, substitute
from modak.gateway.dialect.types import SqlType, column_type

__all__ = [
    "Catalog",
    "CatalogRelation",
    "RemoteSelect",
    "RuntimeProblem",
    "Scope",
    "SqlType",
    "TranslatedQuery",
    "Typed",
    "Untranslatable",
    "as_text",
    "column_type",
    "parse",
    "parse_expression",
    "parse_remote",
    "predicates",
    "register_functions",
    "runtime_problem",
    "substitute",
    "text_sql",
    "translate",
    "translate_query",
]
