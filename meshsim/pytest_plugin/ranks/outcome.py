"""What a rank says about its run of a test's body, in a form that can leave its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class RankKind(str, Enum):
    """How the body ended on one rank."""

    PASSED = "passed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    EXIT = "exit"
    """``pytest.exit``"""
    FAILED = "failed"


@dataclass(frozen=True)
class RankWarning:
    """A warning that the body gave: the category's module and name, the text, and where."""

    category: tuple[str, str]
    message: str
    filename: str
    lineno: int


@dataclass
class SubtestOutcome:
    """One ``with subtests.test(...)`` on one rank."""

    message: str | None
    values: dict[str, str]
    """``repr`` of the keyword arguments."""
    failed: bool = False
    skipped: str | None = None
    longrepr: Any = None
    type: str = ""


@dataclass
class RankOutcome:
    """One rank's own account. ``longrepr`` is pytest's representation of the failure, made on the rank."""

    kind: RankKind
    reason: str = ""
    location: tuple[str, int] | None = None
    """File and line of a skip."""
    exit_code: int | None = None
    """The code given to ``pytest.exit``."""
    longrepr: Any = None
    text: str = ""
    """The representation as text; equal on ranks that failed alike."""
    bases: tuple[str, ...] = ()
    """Qualified names of the exception's class and its bases, nearest first."""
    logs: str = ""
    warnings: list[RankWarning] = field(default_factory=list)
    recorded: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """Calls of ``record_property`` and its like: the fixture's name and the arguments."""
    subtests: list[SubtestOutcome] = field(default_factory=list)
    returned: str = ""
    """The type of what the body returned, where that is not None."""
