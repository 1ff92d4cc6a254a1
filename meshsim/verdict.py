"""The verdict: what came of a run, with the ranks, operation and source line at fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class VerdictKind(str, Enum):
    """Every way a run can end. A member equals its text: ``verdict.kind == "deadlock"``."""

    PASSED = "passed"
    RAISED = "raised"
    """A rank raised an exception."""
    DEADLOCK = "deadlock"
    """Ranks wait for calls that will never come: a rank missed a call, returned early, or a cycle."""
    TIMEOUT = "timeout"
    """The deadline passed and the traces prove nothing more."""
    EXITED = "exited"
    """A rank ended its process without handing in a result."""
    KILLED = "killed"
    """A signal ended a rank."""


class Severity(str, Enum):
    """What a finding means for the run."""

    ERROR = "error"
    """Wrong on every backend."""
    HAZARD = "hazard"
    """gloo passes, NCCL hangs or corrupts. Makes the run fail."""
    WARNING = "warning"
    """Doesn't make the run fail."""


@dataclass
class Finding:
    """One thing that is wrong. ``ranks`` are the culprits; ``waiting`` merely wait for them."""

    kind: VerdictKind
    summary: str
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    severity: Severity = Severity.ERROR


@dataclass
class Verdict:
    """``summary`` is one sentence for a person; ``details`` the same as data."""

    kind: VerdictKind
    summary: str
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    warnings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.kind is VerdictKind.PASSED

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.summary}"
