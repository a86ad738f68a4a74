"""Named crash points: nothing unless a test arms them.

``MODAK_FAILPOINTS="tier.after_commit=kill,register.before_commit=raise"`` arms points for a child process; ``armed`` does it
inside one, where the action may also be something to call. ``kill`` ends the process as SIGKILL would, which is what a crash test means
by a crash; ``stop`` pauses it as SIGSTOP does, until somebody sends SIGCONT.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator


class FailpointError(RuntimeError):
    """Raised at an armed point in ``raise`` mode; deliberately no ModakError, so no handler treats it as expected."""


_ACTIONS = ("raise", "kill", "stop")
_armed: dict[str, str | Callable[[], object]] = {}


def arm(text: str) -> None:
    """Arm points from ``name=action`` pairs separated by commas."""
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = pair.partition("=")
        if action not in _ACTIONS:
            raise ValueError(f"failpoint {name!r}: action must be one of {_ACTIONS}, not {action!r}")
        _armed[name] = action


@contextlib.contextmanager
def armed(name: str, action: str | Callable[[], object] = "raise") -> Iterator[None]:
    if isinstance(action, str):
        arm(f"{name}={action}")
    else:
        _armed[name] = action
    try:
        yield
    finally:
        _armed.pop(name, None)


def failpoint(name: str) -> None:
    """Mark a place between two steps where a crash must be harmless."""
    action = _armed.get(name)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "raise":
        raise FailpointError(name)
    elif callable(action):
        action()
