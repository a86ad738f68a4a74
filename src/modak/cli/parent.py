"""Children of ``modak up`` end with it, also when it is killed: its end of their standard input closes, and they are asked to end."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def with_parent(function: F) -> F:
    """The hidden option --with-parent."""

    @click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input closes.")
    @functools.wraps(function)
    def wrapped(*arguments: Any, with_parent: bool, **options: Any) -> Any:
        if with_parent:
            threading.Thread(target=_watch, name="modak-parent", daemon=True).start()
        return function(*arguments, **options)

    return wrapped  # type: ignore[return-value]


def _watch() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
