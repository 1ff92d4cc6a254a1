"""Whether this process reports to the user. Of the ranks of a job only one does."""

from __future__ import annotations

_speaks = True


def speaks_for_all() -> bool:
    """False on the ranks of a job that another rank reports for; they exit with the same code, silently."""
    return _speaks


def let_another_speak() -> None:
    global _speaks
    _speaks = False


def speak() -> None:
    """The rank that reported is gone."""
    global _speaks
    _speaks = True
