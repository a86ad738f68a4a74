"""Storage profiles: exactly one default, no secrets in the catalog, credentials from the environment (SCENARIOS 12, 14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pyiceberg.catalog.rest import RestCatalog
from tests.support import EVENTS, codes, create_events, options, register_events, register_table, rows, schema_dump, value

from modak.app import App
from modak.catalog import profiles
from modak.connection import Connection
from modak.core.profile import Profile
from modak.errors import MissingComponent, NotFound, Refused
from modak.lake.rest import BoundedRestCatalog
from modak.lake.storage import catalog_name, pyiceberg_properties, resolve, spark_properties
from modak.settings import load

SECRET = "hunter2-very-secret"


def defaults(connection: Connection) -> list[str]:
    return [profile.name for profile in profiles.listing(connection) if profile.is_default]


def test_there_is_one_default_from_the_start(connection: Connection) -> None:
    assert profiles.get(connection, None) == Profile("default", is_default=True)
    assert defaults(connection) == ["default"]


def test_the_default_moves_and_never_disappears(connection: Connection) -> None:
    profiles.save(connection, Profile("north", warehouse="s3://north", is_default=True))
    assert defaults(connection) == ["north"]
    with pytest.raises(Refused, match="one storage profile must be the default"):
        profiles.save(connection, Profile("north", warehouse="s3://north", is_default=False))
    with pytest.raises(Refused, match="is the default"):
        profiles.drop(connection, "north")
    profiles.save(connection, Profile("default", is_default=True))
    profiles.drop(connection, "north")
    profiles.drop(connection, "north")
    assert defaults(connection) == ["default"]


def test_a_profile_with_tables_stays(connection: Connection, app: App) -> None:
    create_events(connection)
    profiles.save(connection, Profile("north", warehouse=str(app.settings.data / "north")))
    profile = profiles.get(connection, "north")
    from modak.registration.register import register

    register(connection, app.lake(profile), EVENTS, options(), profile="north")
    with pytest.raises(Refused, match="holds 1 tables"):
        profiles.drop(connection, "north")


def test_an_unknown_profile_is_answered_with_the_known_ones(connection: Connection) -> None:
    with pytest.raises(NotFound, match="nowhere") as refused:
        profiles.get(connection, "nowhere")
    assert "known: default" in str(refused.value.hint)


SECRET_KEYS = [
    "s3.secret-access-key", "s3.access-key-id", "s3.session-token", "password", "gcs.oauth2.token", "credential", "adls.account-key",
    "adls.client-secret", "adls.connection-string", "adls.sas-token", "header.Authorization", "apiKey", "privateKey", "PASSWD",
]  # fmt: skip


def test_secrets_are_refused_by_the_program_and_by_the_database(connection: Connection) -> None:
    insert = "insert into modak.storage_profiles (profile_name, lake_config) values ('n', jsonb_build_object(%s::text, 'x'))"
    for key in SECRET_KEYS:
        with pytest.raises(Refused) as refused:
            profiles.save(connection, Profile("north", lake_config={key: SECRET}))
        assert codes(refused.value) == ["secret"], key
        assert SECRET not in str(refused.value)
        assert "MODAK_CREDENTIALS_" in str(refused.value)
        with pytest.raises(psycopg.errors.CheckViolation, match="lake_config_holds_no_secret"):
            connection.execute(insert, [key])


@pytest.mark.parametrize("profile", [Profile("n", "s3://me:pw@bucket/x"), Profile("n", lake_config={"uri": "https://me:pw@host/"})])
def test_a_password_inside_an_address_is_a_secret_too(connection: Connection, profile: Profile) -> None:
    with pytest.raises(Refused, match="holds a password"):
        profiles.save(connection, profile)
    with pytest.raises(Exception, match="uris_hold_no_password"):
        connection.execute(
            "insert into modak.storage_profiles (profile_name, warehouse, lake_config)"
            " values ('n', %s, jsonb_build_object('uri', %s::text))",
            [profile.warehouse, profile.lake_config.get("uri", "")],
        )


def test_plain_settings_are_taken(connection: Connection) -> None:
    for key in ("s3.endpoint", "s3.region", "s3.path-style-access", "uri", "catalog", "oauth2-server-uri", "py-io-impl"):
        profiles.save(connection, Profile("north", lake_config={key: "http://localhost:9000/a:b@c"}))
        assert profiles.get(connection, "north").lake_config == {key: "http://localhost:9000/a:b@c"}


def test_bad_names_are_all_told(connection: Connection) -> None:
    with pytest.raises(Refused) as refused:
        profiles.save(connection, Profile("North Pole", credential_ref="lower case"))
    assert codes(refused.value) == ["name", "credentials"]


def test_credentials_come_from_the_environment_and_are_never_stored(connection: Connection, app: App, dsn: str, tmp_path: Path) -> None:
    settings = load({"MODAK_CREDENTIALS_NORTH": f"s3.access-key-id=AKIA,s3.secret-access-key={SECRET}"}, dsn=dsn, data=str(tmp_path))
    profiles.save(connection, Profile("north", warehouse=str(tmp_path / "north"), credential_ref="NORTH", lake_config={"s3.region": "eu"}))
    profile = profiles.get(connection, "north")
    storage = App(settings).storage(profile)
    assert storage.config == {"s3.region": "eu", "client.region": "eu", "s3.access-key-id": "AKIA", "s3.secret-access-key": SECRET}
    assert SECRET not in repr(storage) + repr(settings)
    with pytest.raises(MissingComponent, match="NORTH") as refused:
        App(replace(settings, credentials={})).storage(profile)
    assert "MODAK_CREDENTIALS_NORTH" in str(refused.value.hint)
    create_events(connection)
    from modak.registration.register import register

    register(connection, App(settings).lake(profile), EVENTS, options(), profile="north")
    assert SECRET not in schema_dump(dsn)
    assert SECRET not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))


def test_a_dump_restores_the_registry_and_reattaches_to_the_lake(
    connection: Connection, app: App, dsn: str, new_database: Callable[..., str]
) -> None:
    """pg_dump | psql into an empty database: the cut-line and the lake pointer come along, and writes go on."""
    import subprocess

    from modak.connection import connect
    from modak.embedded.server_binaries import find_server_binaries

    lake = app.lake(profiles.get(connection, None))
    register_events(connection, lake)
    connection.execute("insert into public.events values (9, -5, 'cold')")
    bins = find_server_binaries().bin_dir
    target = new_database()
    dump = subprocess.run([str(bins / "pg_dump"), dsn], capture_output=True, check=True).stdout
    subprocess.run([str(bins / "psql"), target, "-qX", "-v", "ON_ERROR_STOP=1"], input=dump, check=True, capture_output=True)
    with connect(target, autocommit=True) as restored:
        assert rows(restored, "select table_name, cutline_t, delta_backlog from modak.status") == [("events", 0, 1)]
        found = App(replace(app.settings, dsn=target)).lake(profiles.get(restored, None)).find("public.events")
        assert found is not None
        assert value(restored, "select lake_props ->> 'metadata_location' from modak.cutline") == found.metadata_location


@pytest.mark.parametrize("pair", [("a-b", "a_b"), ("default", "modak"), ("x", "y")])
def test_two_profiles_are_two_catalogs(pair: tuple[str, str]) -> None:
    first, second = map(catalog_name, pair)
    assert first != second
    assert first.isidentifier()
    assert second.isidentifier()


def test_a_rest_catalog_by_setting_or_by_profile(app: App) -> None:
    profile = Profile("x", lake_config={"catalog": "http://rest:8181"})
    rest = resolve(profile, dsn=app.dsn, catalog="jdbc", warehouse="s3://w", folder="/w", credentials={})
    assert issubclass(BoundedRestCatalog, RestCatalog)
    assert pyiceberg_properties(rest)["py-catalog-impl"] == f"{BoundedRestCatalog.__module__}.{BoundedRestCatalog.__name__}"
    assert spark_properties(rest)["spark.sql.catalog.modak_x.uri"] == "http://rest:8181"
    assert "password" not in " ".join(spark_properties(rest))


def test_registering_without_a_profile_takes_the_default_one(connection: Connection, app: App) -> None:
    create_events(connection)
    assert register_table(connection, app.lake(profiles.get(connection, None))).storage_profile == "default"
