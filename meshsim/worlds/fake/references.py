"""Names in modules that a process would have to itself, each with a rank's own object behind it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from meshsim import torch_private

Values = list[Any]
"""One object a reference, in their order."""


@dataclass(frozen=True, slots=True)
class _Reference:
    scope: dict[str, Any]
    name: str
    fresh: Callable[[], Any]
    """Makes what a new process would find under the name."""


class References:
    """``sys.argv``, ``sys.path``, the standard streams and their like, swapped by reference.

    What the names mean when this is made is what every rank starts with: lists are copied, the rest is
    shared. ``stdout`` and ``stderr`` are the ranks' streams.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._references = [
            *(_copied(sys.__dict__, name) for name in ("argv", "path")),
            _Reference(sys.__dict__, "stdout", lambda: stdout),
            _Reference(sys.__dict__, "stderr", lambda: stderr),
            _shared(sys.__dict__, "excepthook"),
            _copied(warnings.__dict__, "filters"),
            # catch_warnings() puts its own function under either name.
            *(_shared(warnings.__dict__, name) for name in ("showwarning", "_showwarnmsg_impl")),
        ]
        self._knows_dtensor = False
        self._note_dtensor()

    def fresh(self) -> Values:
        return [reference.fresh() for reference in self._references]

    def capture(self) -> Values:
        """What the names mean now."""
        self._note_dtensor()
        return [reference.scope[reference.name] for reference in self._references]

    def install(self, values: Values) -> None:
        """Make the names mean ``values``."""
        for reference in self._references[len(values) :]:
            values.append(reference.fresh())
        filters = warnings.filters
        for reference, value in zip(self._references, values, strict=True):
            reference.scope[reference.name] = value
        if filters is not warnings.filters and filters != warnings.filters:
            # Modules remember which warnings they have shown under the filters of before.
            torch_private.forget_shown_warnings()

    def _note_dtensor(self) -> None:
        """DTensor is imported when somebody uses it; ``loss_parallel()`` changes its table of handlers."""
        if not self._knows_dtensor:
            found = torch_private.dtensor_custom_handlers()
            if found is not None:
                scope, handlers = found
                self._references.append(_Reference(scope, "_custom_op_handlers", lambda: dict(handlers)))
                self._knows_dtensor = True


def _copied(scope: dict[str, Any], name: str) -> _Reference:
    before = list(scope[name])
    return _Reference(scope, name, lambda: list(before))


def _shared(scope: dict[str, Any], name: str) -> _Reference:
    before = scope[name]
    return _Reference(scope, name, lambda: before)
