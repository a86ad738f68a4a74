"""No object that holds a password shows it: what is logged or raised is often a repr."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import modak

SECRET = {"dsn", "password", "credentials", "io_properties", "load_token", "console_password"}


def test_what_holds_a_secret_does_not_show_it() -> None:
    seen, shown = 0, []
    for module in pkgutil.walk_packages(modak.__path__, "modak."):
        if module.name.endswith("__main__"):
            continue
        for name, found in vars(importlib.import_module(module.name)).items():
            if not (isinstance(found, type) and dataclasses.is_dataclass(found)) or found.__module__ != module.name:
                continue
            secrets = [field for field in dataclasses.fields(found) if field.name in SECRET]
            seen += len(secrets)
            # A class with a repr of its own says what it shows.
            shown += [f"{module.name}.{name}.{field.name}" for field in secrets if field.repr and not _own_repr(found)]
    assert seen > 8
    assert shown == []


def _own_repr(found: type) -> bool:
    """dataclass() wraps the one it makes."""
    return not hasattr(found.__repr__, "__wrapped__")
