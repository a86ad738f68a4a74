"""Django without a project: one model of the registered table, one of its twin. Imported once per process, since settings are."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import django
from django.conf import settings
from psycopg import conninfo

settings.configure(DATABASES={}, INSTALLED_APPS=[], USE_TZ=True, TIME_ZONE="UTC", DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()

from django.db import connections, models  # noqa: E402 - models need settings


class Columns(models.Model):
    id = models.BigAutoField(primary_key=True)
    placed_at: Any = models.DateTimeField()
    customer: Any = models.TextField()
    status: Any = models.TextField(db_default="placed")
    amount: Any = models.DecimalField(max_digits=12, decimal_places=2)
    details: Any = models.JSONField(null=True)
    changed: Any = models.IntegerField(db_default=0)

    class Meta:
        abstract = True

    def seen(self) -> tuple[int, dt.datetime, str, str, Decimal, Any, int]:
        return (self.id, self.placed_at, self.customer, self.status, self.amount, self.details, self.changed)


class Order(Columns):
    class Meta:
        app_label = "shop"
        db_table = "orders"
        managed = False


class PlainOrder(Columns):
    class Meta:
        app_label = "shop"
        db_table = "orders_plain"
        managed = False


def use(alias: str, dsn: str, **options: Any) -> str:
    """Make a database known under an alias."""
    parts = conninfo.conninfo_to_dict(dsn)
    entry = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "PASSWORD": parts.get("password") or "",
        "HOST": parts["host"],
        "PORT": parts["port"],
        "OPTIONS": options,
    }
    connections.settings = connections.configure_settings({**connections.settings, alias: entry})
    return alias
