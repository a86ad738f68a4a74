"""No room left where the lake's files go, or the bodies of loads: nothing is lost, it is said, and it goes on once there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_a_full_warehouse(dsn: str, tmp_path: Path) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    command = [*namespace, sys.executable, "-m", "tests.full_disk", dsn, str(tmp_path / "data")]
    folder = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{folder}/src:{folder}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "done"
