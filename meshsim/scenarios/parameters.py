"""What a built-in scenario may be told through ``ctx.params``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshsim.errors import UsageError

NOTHING = "nothing"
"""The value of ``break`` for a run without a mistake."""


def chosen(params: Mapping[str, Any], known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """A value for each known parameter, its first one by default. ``UsageError`` for anything else."""
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise UsageError(f"there is no parameter {', '.join(unknown)}; there is {', '.join(known) or 'none'}")
    for name, value in params.items():
        if value not in known[name]:
            raise UsageError(f"parameter {name}={value!r} is unknown; known are {', '.join(known[name])}")
    return {name: str(params.get(name, values[0])) for name, values in known.items()}


def mistake(params: Mapping[str, Any], *known: str) -> str:
    """The parameter ``break``: one of the ``known`` mistakes to make on purpose, ``nothing`` by default."""
    return chosen(params, {"break": (NOTHING, *known)})["break"]
