"""Names in modules that a process would have to itself, each with a rank's own object behind it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from io import TextIOBase
from operator import itemgetter
from typing import Any

from meshsim import torch_private

Values = list[tuple[Any, ...]]
"""The objects behind the names: a tuple for each module, in the modules' order."""


class _Names:
    """Some names of one module. ``fresh()`` makes what a new process would find behind them."""

    __slots__ = ("fresh", "names", "read", "scope")

    def __init__(
        self, scope: dict[str, Any], names: Sequence[str], fresh: Callable[[], tuple[Any, ...]]
    ) -> None:
        self.scope = scope
        self.names = tuple(names)
        self.fresh = fresh
        if len(names) == 1:
            self.read: Callable[[dict[str, Any]], tuple[Any, ...]] = lambda scope: (scope[names[0]],)
        else:
            self.read = itemgetter(*names)


class References:
    """``sys.argv``, ``sys.path``, the standard streams and their like, swapped by reference.

    What the names mean when this is made is what every rank starts with: lists are copied, the rest is
    shared. ``stdout`` and ``stderr`` are the ranks' streams.
    """

    def __init__(self, stdout: TextIOBase, stderr: TextIOBase) -> None:
        argv, path, hook = list(sys.argv), list(sys.path), sys.excepthook
        filters = list(warnings.filters)
        # catch_warnings() puts its own function under either name.
        shown = (warnings.showwarning, warnings.__dict__["_showwarnmsg_impl"])
        self._modules = [
            _Names(
                sys.__dict__,
                ("argv", "path", "stdout", "stderr", "excepthook"),
                lambda: (list(argv), list(path), stdout, stderr, hook),
            ),
            _Names(
                warnings.__dict__,
                ("filters", "showwarning", "_showwarnmsg_impl"),
                lambda: (list(filters), *shown),
            ),
        ]
        self._knows_dtensor = False
        self._note_dtensor()

    def fresh(self) -> Values:
        return [module.fresh() for module in self._modules]

    def capture(self) -> Values:
        """What the names mean now."""
        if not self._knows_dtensor:
            self._note_dtensor()
        return [module.read(module.scope) for module in self._modules]

    def install(self, values: Values) -> None:
        """Make the names mean ``values``."""
        for module in self._modules[len(values) :]:
            values.append(module.fresh())
        filters = warnings.filters
        for module, objects in zip(self._modules, values, strict=True):
            module.scope.update(zip(module.names, objects, strict=True))
        if filters is not warnings.filters and filters != warnings.filters:
            # Modules remember which warnings they have shown under the filters of before.
            torch_private.forget_shown_warnings()

    def _note_dtensor(self) -> None:
        """DTensor is imported when somebody uses it; ``loss_parallel()`` changes its table of handlers."""
        found = torch_private.dtensor_custom_handlers()
        if found is not None:
            scope, handlers = found
            self._modules.append(_Names(scope, ("_custom_op_handlers",), lambda: (dict(handlers),)))
            self._knows_dtensor = True
