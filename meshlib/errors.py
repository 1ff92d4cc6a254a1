"""What meshlib raises. Every message says what is wrong and what would be right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class MeshError(Exception):
    """Base of everything that meshlib raises on its own account."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the sizes: the axis, the arithmetic, the values that fit, the edit to
    make.
    """

    axis: str
    reason: str
    """The expression with its operands, such as ``8 % 3 = 2``."""
    valid: tuple[int, ...] = ()
    fix: str = ""

    def __str__(self) -> str:
        parts = [f"{self.axis}: {self.reason}" if self.axis else self.reason]
        if self.valid:
            parts.append(f"valid {self.axis}: {', '.join(map(str, self.valid))}")
        if self.fix:
            parts.append(f"try {self.fix}")
        return "; ".join(parts)


class TopologyError(MeshError, ValueError):
    """Sizes, shapes, names or rank lists that make no mesh. ``problems`` holds all of them, not the
    first only.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class UnknownAxis(MeshError, KeyError):
    """An axis (or view) that isn't there; the message lists those that are."""

    def __str__(self) -> str:
        # KeyError would show the message's repr.
        return str(self.args[0]) if self.args else ""


class NotInMesh(MeshError):
    """This rank isn't in the mesh that it was asked about."""


class PlanDisagreement(MeshError):
    """Ranks asked for different meshes. Raised on every one of them, before the first process group."""


def topology_error(problems: Sequence[Problem], subject: str = "") -> TopologyError:
    """One error for all problems: a single line for one, a line each for several."""
    prefix = f"{subject}: " if subject else ""
    if len(problems) == 1:
        return TopologyError(f"{prefix}{problems[0]}", problems)
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return TopologyError(f"{prefix}{len(problems)} problems:\n{lines}", problems)
