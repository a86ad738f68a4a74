"""The gate's linters, so that `make test` alone says what `make check` would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = {
    "ruff check": ["ruff", "check", "--quiet", "--output-format=concise", "."],
    "ruff format": ["ruff", "format", "--check", "--quiet", "."],
    "mypy": ["mypy", "--no-error-summary"],
}


@pytest.mark.parametrize("tool", TOOLS)
def test_it_has_nothing_to_say(tool: str) -> None:
    done = subprocess.run([sys.executable, "-m", *TOOLS[tool]], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, f"{tool}:\n{done.stdout}{done.stderr}"


def test_no_file_grew_beyond_reading() -> None:
    long = {
        str(path.relative_to(ROOT)): count for path in (ROOT / "src").rglob("*.py") if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}
