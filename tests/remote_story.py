"""Tier, compare, drop, correct, fold, look for doubles: one table's way through Spark, in a process of its own with settings of its own.

The short way ends where nothing has to be read through a gateway.
"""

from __future__ import annotations

import os
import sys

from modak.app import App
from modak.core.table import Name
from modak.jobs.fold import fold
from modak.jobs.tier import tier
from modak.jobs.verify import verify
from modak.settings import load
from tests.support import reclaim_all

PAIRS = Name("public", "pairs")


def main() -> None:
    app = App(load(os.environ))
    with app.job(PAIRS) as job:
        assert tier(job).rows == 3
        found = verify(job)
        assert (found.rows, found.differences) == (3, ())
        reclaim_all(job)
    if sys.argv[1:] == ["short"]:
        print("done")
        return
    with app.connection() as connection:
        connection.execute("update public.pairs set val = 'corrected' where id = 2")
        connection.execute("delete from public.pairs where id = 3")
    with app.job(PAIRS) as job:
        assert fold(job).corrections == 2
        assert verify(job).differences == ()
    spark = app.spark()
    shown = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    assert "spark.redaction.regex" in shown
    secrets = [value for given in app.settings.credentials.values() for name, value in given.items() if name != "s3.access-key-id"]
    assert not any(secret in value for secret in secrets for value in shown.values()), "SET shows a secret"
    spark.stop()
    print("done")


if __name__ == "__main__":
    main()
