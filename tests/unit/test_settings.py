"""Settings: declared once, read once, mistakes refused, secrets never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from modak.errors import UsageError
from modak.settings import SETTINGS, Setting, load, unknown


def test_defaults() -> None:
    settings = load({"HOME": "/people/me"})
    assert (settings.dsn, settings.catalog, settings.spark) == (None, "jdbc", "local[*]")
    assert (settings.http, settings.gateway) == (("127.0.0.1", 9090), ("127.0.0.1", 5439))
    assert settings.cycle_seconds == 10.0
    assert settings.warehouse_root == "modak-data/warehouse"
    assert settings.cache == Path("/people/me/.cache/modak")


def test_the_command_line_wins_over_the_environment_and_blank_counts_as_absent() -> None:
    environ = {"MODAK_DSN": "postgresql://environment", "MODAK_SPARK": "", "MODAK_CYCLE_SECONDS": "0.5"}
    assert load(environ, dsn="postgresql://flag").dsn == "postgresql://flag"
    assert load(environ, dsn=None).dsn == "postgresql://environment"
    assert load(environ).spark == "local[*]"
    assert load(environ).cycle_seconds == 0.5


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_each_setting_has_a_variable_and_a_meaning(setting: Setting) -> None:
    assert setting.variable == f"MODAK_{setting.name.upper()}"
    assert setting.meaning
    special = {"http": "h:1", "gateway": "h:1", "cycle_seconds": "1", "catalog": "http://c", "spark": "yarn"}
    special |= {"gateway_memory": "3GB", "gateway_threads": "3", "gateway_connections": "7"}
    special |= {"load_body_max": "3GB", "load_connections": "7", "log": "json"}
    numbers = ("worker_tables", "lease_seconds", "drain_seconds", "fold_rows", "fold_seconds", "backlog_rows", "backlog_labels")
    special |= dict.fromkeys((*numbers, "maintain_seconds"), "7")
    assert load({setting.variable: special.get(setting.name, "x")}) != load({})


WRONG = [
    ("MODAK_HTTP", "9090"),
    ("MODAK_HTTP", "host:"),
    ("MODAK_HTTP", "host:99999"),
    ("MODAK_HTTP", "host:²"),
    ("MODAK_GATEWAY", ":5439"),
    ("MODAK_CYCLE_SECONDS", "soon"),
    ("MODAK_CYCLE_SECONDS", "0"),
    ("MODAK_CYCLE_SECONDS", "nan"),
    ("MODAK_CYCLE_SECONDS", "inf"),
    ("MODAK_CATALOG", "hive"),
    ("MODAK_SPARK", "mesos://x"),
    ("MODAK_LOAD_BODY_MAX", "much"),
    ("MODAK_LOAD_BODY_MAX", "0GB"),
    ("MODAK_LOAD_CONNECTIONS", "0"),
    ("MODAK_LOG", "xml"),
]


@pytest.mark.parametrize(("variable", "text"), WRONG)
def test_a_wrong_value_names_its_setting(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=variable.removeprefix("MODAK_").lower()):
        load({variable: text})


SLIPS = [
    ("MODAK_WAREHOSE", "MODAK_WAREHOUSE"),
    ("MODAK_WEARHOUSE", "MODAK_WAREHOUSE"),
    ("MODAK_DNS", "MODAK_DSN"),
    ("MODAK_HTPP", "MODAK_HTTP"),
    ("MODAK_LOGS", "MODAK_LOG"),
    ("MODAK_GATEWAY_DNS_HOST", "MODAK_GATEWAY_DSN_HOST"),
    ("MODAK_CREDENTIAL_NORTH", "MODAK_CREDENTIALS_<REF>"),
    ("MODAK_CREDENTIALS", "MODAK_CREDENTIALS_<REF>"),
]


@pytest.mark.parametrize(("variable", "near"), SLIPS)
def test_a_typing_mistake_is_refused_with_what_was_meant(variable: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"unknown setting {variable}") as refused:
        load({variable: "1"})
    assert f"did you mean {near}?" in str(refused.value.hint)


@pytest.mark.parametrize("name", ["BIN", "DB", "HOST", "PORT", "TEST", "HOME", "VERSION", "DATABASE", "TOKEN", "X", ""])
def test_any_other_variable_is_somebody_elses(name: str) -> None:
    environ = {f"MODAK_{name}": "1"}
    assert load(environ) == load({})
    assert unknown(environ) == [f"MODAK_{name}"]
    assert unknown({"MODAK_DSN": "1", "MODAK_CREDENTIALS_NORTH": "k=v", "PATH": "/bin"}) == []


def test_other_programs_variables_are_no_concern_of_ours() -> None:
    assert load({"MODAKX": "1", "modak_dsn": "1", "PATH": "/bin"}).dsn is None


@pytest.mark.parametrize("text", ["a=1,b=x=y", '{"a": "1", "b": "x=y"}', ' {"a": 1, "b": "x=y"}', " a=1, b=x=y"])
def test_credentials_are_pairs_or_json(text: str) -> None:
    assert load({"MODAK_CREDENTIALS_NORTH": text}).credentials == {"NORTH": {"a": "1", "b": "x=y"}}


@pytest.mark.parametrize("text", ["hunter2", "a=1,hunter2", '{"a": "hunter2"', '["hunter2"]'])
def test_credentials_that_cannot_be_read_are_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match="MODAK_CREDENTIALS_NORTH") as refused:
        load({"MODAK_CREDENTIALS_NORTH": text})
    assert "hunter2" not in f"{refused.value} {refused.value.hint} {refused.value.__cause__}"


def test_secrets_are_not_printed() -> None:
    secrets = {setting.variable: "hunter2" for setting in SETTINGS if setting.secret}
    assert set(secrets) == {"MODAK_DSN", "MODAK_LOAD_TOKEN", "MODAK_REST_TOKEN", "MODAK_CONSOLE_DSN", "MODAK_CONSOLE_PASSWORD"}
    assert "hunter2" not in repr(load(secrets | {"MODAK_CREDENTIALS_X": "k=hunter2"}))


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"MODAK_CACHE": "/c"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/modak"),
        ({"HOME": "/h"}, "/h/.cache/modak"),
    ],
)
def test_where_fetched_jars_are_kept(environ: dict[str, str], cache: str) -> None:
    assert load(environ).cache == Path(cache)


def test_an_ipv6_address() -> None:
    assert load({"MODAK_HTTP": "[::1]:80"}).http == ("::1", 80)


def test_a_catalogs_address_holds_no_password() -> None:
    with pytest.raises(UsageError) as refused:
        load({"MODAK_CATALOG": "https://somebody:hunter2@catalog"})
    assert "hunter2" not in str(refused.value)
