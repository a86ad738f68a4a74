"""The lookout: a small process beside a gateway that tells Postgres when the gateway was killed.

A gateway that stops says so itself. One that is killed leaves a pipe without a writer, which is all that is watched here: no clock, no
probes. What takes both at once, a machine that dies, is not seen; then hot queries may wait for a gateway until one is back.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time

_GOODBYE = "goodbye"
# Postgres may be restarting as well.
_ATTEMPTS, _PAUSE_SECONDS = 30, 2.0


class Lookout:
    """The gateway's end of the pipe."""

    def __init__(self, dsn: str, since: str) -> None:
        # A session of its own: what ends the gateway's, Ctrl-C for one, is not for it. The DSN goes by the pipe, where nobody lists it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "modak.gateway.lookout"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._say(json.dumps({"dsn": dsn, "since": since}))

    @property
    def pid(self) -> int:
        return self._process.pid

    def dismiss(self) -> None:
        """The gateway has said goodbye itself."""
        self._say(_GOODBYE)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def _say(self, line: str) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()


def main() -> None:
    # A service manager signals all processes of a service at once; the gateway decides what that means.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    told = sys.stdin.readline()
    if told and sys.stdin.readline().strip() != _GOODBYE:
        report(**json.loads(told))


def report(dsn: str, since: str) -> None:
    import psycopg

    from modak.connection import connect
    from modak.errors import ModakError
    from modak.gateway.fdw.presence import depart

    for _ in range(_ATTEMPTS):
        try:
            with connect(dsn, application="modak-lookout", autocommit=True, connect_timeout=10) as connection:
                depart(connection, since)
                return
        except (psycopg.Error, ModakError):
            time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    main()
