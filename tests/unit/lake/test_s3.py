"""One vocabulary for three libraries, and nothing secret in what is shown."""

from __future__ import annotations

import re

import pytest

from modak.core.profile import Profile
from modak.errors import LakeError, LakeFull
from modak.jobs.spark import SHARED
from modak.lake import s3
from modak.lake.failures import failures, lake_failures
from modak.lake.storage import Storage, io_properties, pyiceberg_properties, resolve, spark_properties
from modak.scan.engine import secret_sql

DSN = "postgresql://modak:a-database-password@127.0.0.1/db"
KEYS = {"s3.access-key-id": "AK", "s3.secret-access-key": "a-key-of-the-store"}
CATALOG = {"credential": "client:a-client-secret", "token": "a-bearer-token", "oauth2-server-uri": "https://login", "scope": "all"}


def storage(catalog: str = "jdbc", warehouse: str = "s3://lake/x", **config: str) -> Storage:
    profile = Profile("default", warehouse, config, "COLD")
    return resolve(profile, dsn=DSN, catalog=catalog, warehouse=None, folder="/data/warehouse", credentials={"COLD": {**KEYS, **CATALOG}})


def test_a_store_with_an_endpoint_is_asked_by_path_and_has_a_region() -> None:
    found = s3.completed({"s3.endpoint": "http://127.0.0.1:9000"})
    assert found["s3.path-style-access"] == "true"
    assert found["s3.force-virtual-addressing"] == "false"
    assert found["s3.region"] == found["client.region"] == "us-east-1"


def test_aws_is_left_to_its_defaults() -> None:
    assert s3.completed({"client.region": "eu-west-1"}) == {"client.region": "eu-west-1", "s3.region": "eu-west-1"}
    assert s3.completed({}) == {}


@pytest.mark.parametrize(
    ("given", "style"),
    [({"s3.path-style-access": "false"}, "'vhost'"), ({"s3.force-virtual-addressing": "true"}, "'vhost'"), ({}, "'path'")],
)
def test_everybody_is_told_the_same_style(given: dict[str, str], style: str) -> None:
    found = storage(**{"s3.endpoint": "http://store:9000", **given})
    assert f"URL_STYLE {style}" in secret_sql("modak", found.scope, found.config)
    is_path = str(style == "'path'").lower()
    assert spark_properties(found)["spark.sql.catalog.modak.s3.path-style-access"] == is_path
    assert io_properties(found)["s3.force-virtual-addressing"] != is_path


def test_tasks_do_not_get_the_key_to_the_catalog() -> None:
    given = io_properties(storage("http://catalog"))
    assert given["s3.secret-access-key"] == "a-key-of-the-store"
    assert not given.keys() & {*CATALOG, "uri", "warehouse"}
    assert "a-database-password" not in str(io_properties(storage()))


def test_a_warehouse_is_a_place_or_a_name_of_the_catalog() -> None:
    assert storage(warehouse="").warehouse == "file:///data/warehouse"
    assert pyiceberg_properties(storage("http://catalog", "main"))["warehouse"] == "main"
    assert "warehouse" not in pyiceberg_properties(storage("http://catalog", ""))
    assert storage("http://catalog", "main", **{"s3.endpoint": "http://store"}).scope == "s3://"
    assert storage(warehouse="s3://lake/x").scope == "s3://lake/x/"
    assert storage("http://catalog", "main", **{"s3.endpoint": "http://store"}).is_remote
    assert not storage(warehouse="/srv/lake").is_remote


def test_spark_hides_every_secret_it_is_given() -> None:
    hidden = re.compile(SHARED["spark.redaction.regex"])
    for found in (storage(), storage("http://catalog")):
        for name, value in spark_properties(found).items():
            assert hidden.search(name) or not any(secret in value for secret in found.secrets), name


def test_secrets_are_known_by_their_names() -> None:
    found = storage("http://catalog").secrets
    assert {"a-key-of-the-store", "a-client-secret", "client:a-client-secret", "a-bearer-token", "a-database-password"} == set(found)


@pytest.mark.parametrize("border", [failures, lake_failures])
def test_a_message_of_a_library_shows_no_secret(border: type) -> None:
    with pytest.raises(LakeError) as caught, border("a table", storage()):
        raise OSError("signed with a-key-of-the-store: no")
    assert "a-key-of-the-store" not in str(caught.value)
    assert "***" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_full_disk_has_a_name() -> None:
    with pytest.raises(LakeFull), failures("a table", storage()):
        raise OSError(28, "No space left on device")


def test_a_mistake_of_ours_is_not_the_lakes() -> None:
    with pytest.raises(KeyError), lake_failures("a table", storage()):
        raise KeyError("x")
