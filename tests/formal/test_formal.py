"""TLC on formal/: the model of the bakery holds, and each way to break it is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from modak.embedded.jars import fetch, read_lock
from modak.embedded.java import find_java
from modak.progress import SILENT
from modak.settings import load

ROOT = Path(__file__).parents[2]
FORMAL = ROOT / "formal"
LOCK = Path(__file__).with_name("tlc.lock")
CONFIGURATIONS = sorted(path.stem for path in FORMAL.glob("*.cfg"))
# What a configuration that fails says first: its broken property, or for one over time that there is one.
FOUND = {"MutualExclusion": "Invariant MutualExclusion is violated", "EverybodyGetsHisTurn": "Temporal properties were violated"}


def check(configuration: str, folder: Path) -> str:
    """TLC's words about the model in this configuration, in a folder of the test's: it writes traces beside a model."""
    shutil.copy(FORMAL / "Bakery.tla", folder)
    (folder / "Bakery.cfg").write_text(configuration)
    cache = load({name: os.environ[name] for name in ("HOME", "MODAK_CACHE", "XDG_CACHE_HOME") if name in os.environ}).cache
    java = find_java(os.environ, cache)
    jar, *_ = fetch(read_lock(LOCK)["tlc"], cache, java, SILENT, title="Fetching the TLA+ model checker")
    command = [str(java.java), "-Xmx1g", "-cp", str(jar), "tlc2.TLC"]
    command += ["-workers", "2", "-metadir", str(folder / "states"), "-config", "Bakery.cfg", "Bakery.tla"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, cwd=folder).stdout


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration(name: str, tmp_path: Path) -> None:
    configuration = (FORMAL / f"{name}.cfg").read_text()
    output = check(configuration, tmp_path)
    if broken := re.match(r"\\\* Fails: (\w+)\.", configuration):
        assert FOUND[broken[1]] in output, output[-3000:]
    else:
        assert "Model checking completed. No error has been found." in output, output[-3000:]


def test_every_switch_has_a_configuration_without_it() -> None:
    model = (FORMAL / "Bakery.tla").read_text()
    switches = re.findall(r"^    (\w+),? +\\\* .*$", model[model.index("Quorum,") :].split("VARIABLES")[0], re.MULTILINE)
    assert len(switches) == 5
    texts = [(FORMAL / f"{name}.cfg").read_text() for name in CONFIGURATIONS if name.startswith("Broken")]
    for switch in switches:
        assert any(f"{switch} = FALSE" in text for text in texts), switch


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("Turns", {"TicketMax": 4, "ClaimsMax": 4}),
        ("Writers", {"TicketMax": 5, "ClaimsMax": 5}),
        ("Crash", {"N": 3, "Quorum": 2, "TicketMax": 2, "ClaimsMax": 2}),
        ("Crash", {"TicketMax": 4, "ClaimsMax": 5, "CrashesMax": 2}),
        ("Cut", {"CutsMax": 3}),
        ("Cut", {"CutsMax": 1, "AsksMax": 1}),
    ],
)
def test_larger(name: str, constants: dict[str, int], tmp_path: Path) -> None:
    text = (FORMAL / f"{name}.cfg").read_text()
    for constant, value in constants.items():
        text, count = re.subn(rf"(?m)^    {constant} = .*$", f"    {constant} = {value}", text)
        assert count == 1
    assert "Model checking completed. No error has been found." in check(text, tmp_path)


def test_the_page_names_every_action_and_function() -> None:
    """Each action of the model stands in the table, with functions that exist."""
    page = (ROOT / "docs" / "formal.md").read_text()
    model = (FORMAL / "Bakery.tla").read_text()
    following = model[model.index("Next ==") : model.index("Fairness ==")]
    actions = set(re.findall(r"(\w+)\([mn]", following))
    assert len(actions) == 13
    for action in actions:
        assert f"| `{action}` |" in page, action
    for function in re.findall(r"`modak\.(\w+)`", page):
        assert (ROOT / "src/modak/catalog/sql/functions" / f"{function}.sql").is_file() or function in ("claims", "nodes"), function
