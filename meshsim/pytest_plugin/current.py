"""The options of the pytest session that runs in this process, for code that pytest doesn't call itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class CurrentOptions:
    """What the command line says of every run, and the list of the session's results."""

    backend: str | None
    seed: int | None
    timeout: float | None
    results: list[Any] = field(default_factory=list)


_sessions: list[CurrentOptions] = []


def current_options() -> CurrentOptions | None:
    """Those of the innermost session; None outside of pytest."""
    return _sessions[-1] if _sessions else None


def session_begins(options: CurrentOptions) -> None:
    _sessions.append(options)


def session_ends(options: CurrentOptions) -> None:
    if options in _sessions:
        _sessions.remove(options)
