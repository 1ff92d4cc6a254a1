"""State of a rank that the rank itself looks after, for code that patches what a process has only once.

In a world whose ranks share a process, each registered state is taken off when its rank gives way to another
and put on again when the rank goes on. Where every rank is a process of its own nothing ever calls either.
"""

from __future__ import annotations

from typing import Protocol


class Swapped(Protocol):
    """What one rank has changed in the process."""

    def put_on(self) -> None:
        """Make the changes again."""

    def take_off(self) -> None:
        """Undo them, and remember how they stood."""


_here: list[Swapped] | None = None


def register(state: Swapped) -> None:
    """From now on swap ``state`` with the running rank. It must be in effect already."""
    if _here is not None:
        _here.append(state)


def unregister(state: Swapped) -> None:
    """Stop swapping ``state``, which stays as it is."""
    if _here is not None:
        _here[:] = [other for other in _here if other is not state]


def enter(states: list[Swapped] | None) -> None:
    """Called by a world when a rank gets to run, with that rank's own list; None: no rank runs."""
    global _here
    _here = states
    for state in states or ():
        state.put_on()


def leave() -> None:
    """Called by a world when the running rank gives way, or when a run ends in its midst."""
    global _here
    states, _here = _here, None
    for state in reversed(states or ()):
        state.take_off()
