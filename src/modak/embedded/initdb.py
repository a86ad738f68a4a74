"""initdb: the files of a new cluster, with a password from the first moment on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from modak.embedded import postmaster
from modak.embedded.files import last_lines, write_atomically
from modak.embedded.run_as import Runner
from modak.embedded.server_binaries import ServerBinaries
from modak.errors import MissingComponent
from modak.progress import Task

# Not "modak": the default search_path starts with "$user", and unqualified tables would land in the catalog's schema.
USER = "postgres"
SETTINGS_FILE = "modak.conf"
"""A file beside postgresql.conf, included by it, for the defaults that Modak writes at each start."""


def sweep(folder: Path, name: str) -> None:
    """Remove what killed starts left: half-made ``name.<hex>`` folders and their password files, nothing else.

    A killed start's initdb may still be at work; it has a folder of its own, so it only fails there.
    """
    for left in folder.glob(f"{name}.{'[0-9a-f]' * 8}*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def initialise(data: Path, password: str, binaries: ServerBinaries, runner: Runner, *, quick: bool, task: Task) -> None:
    """initdb into ``data``, a new folder. ``quick`` leaves the syncing out, for clusters that are thrown away."""
    task.note("making a new cluster")
    password_file = data.with_name(f"{data.name}.password")
    write_atomically(password_file, password + "\n", 0o600)
    runner.own(password_file)
    data.mkdir(mode=0o700)
    runner.own(data)
    argv = [str(binaries.program("initdb")), "-D", str(data), "-U", USER, "--encoding=UTF8", "--data-checksums"]
    argv += ["--auth-host=scram-sha-256", "--auth-local=scram-sha-256", f"--pwfile={password_file}"]
    argv += ["--no-sync"] if quick else []
    try:
        for locale in _locales(binaries.major):
            done = runner.run([*argv, *locale], cwd=data.parent, env=postmaster.clean_environment(os.environ))
            if done.returncode == 0 or "locale" not in done.stdout:
                break
    finally:
        password_file.unlink(missing_ok=True)
    if done.returncode != 0:
        message = f"initdb failed; its output ends with\n{last_lines(done.stdout)}\n"
        raise MissingComponent(message, hint=postmaster.hint_for(done.stdout), folder=data.parent)
    with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write(f"\ninclude_if_exists = '{SETTINGS_FILE}'\n")


def _locales(major: int) -> list[list[str]]:
    """Unicode rules that do not depend on the machine's language; plain C where the machine knows no better."""
    builtin = [["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]] if major >= 17 else []
    return [["--locale=C.UTF-8"], *builtin, ["--locale=C"]]
