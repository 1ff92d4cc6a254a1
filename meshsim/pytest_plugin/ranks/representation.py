"""A rank's exception as pytest shows it, made on the rank, where its frames are."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.ranks.settings import RankSettings

# Their repr is long, and the same for every test.
_SAYING_NOTHING = ("rank_context", "mesh_context")


class Representations:
    """Ranks of one process that failed alike share one representation: making one reads source files."""

    def __init__(self) -> None:
        self._made: dict[object, tuple[Any, str]] = {}

    def of(self, error: BaseException, settings: RankSettings) -> tuple[Any, str]:
        """pytest's long representation, and the same as text."""
        key = (type(error), _text_of(error), _places(error.__traceback__))
        if key not in self._made:
            shown = pytest_private.long_representation(
                error,
                function_file=settings.function_file,
                function_line=settings.function_line,
                style=settings.style,
                show_locals=settings.show_locals,
                full_trace=settings.full_trace,
                verbosity=settings.verbosity,
                absolute_paths=_working_directory() != settings.invocation_dir,
                hidden_arguments=_SAYING_NOTHING,
            )
            self._made[key] = shown, str(shown)
        return self._made[key]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - the user's __str__
        return f"<{type(fault).__name__} in __str__>"


def _places(tb: TracebackType | None) -> tuple[tuple[int, int], ...]:
    found = []
    while tb is not None:
        found.append((id(tb.tb_frame.f_code), tb.tb_lineno))
        tb = tb.tb_next
    return tuple(found)


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""
