"""Values that are made on each rank, instead of being copied to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class OnRank:
    """The value of a fixture in the parent process where each rank is to evaluate ``make`` by itself.

    ``make`` is called on the rank with the arguments, of which those that are ``OnRank`` themselves are
    evaluated first. A generator function's rest runs when the body has ended.
    """

    make: Callable[..., Any]
    label: str
    """What to call it in messages: ``fixture 'model'``."""
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self.label} exists on the ranks only, and this code runs in the parent process, where it has "
            f"no {name!r}; a fixture that uses it must be evaluated on each rank, too: decorate it with "
            "@meshsim.rank_fixture"
        )

    def __repr__(self) -> str:
        return f"<{self.label}, evaluated on each rank>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Hypothesis prints the arguments of an example so.
        printer.text(repr(self))
