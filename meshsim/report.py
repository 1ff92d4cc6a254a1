"""What a world hands back: one report a rank, and what the world itself saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from meshsim.trace import SourceLine, TraceEvent
from meshsim.verdict import Finding


class RankState(str, Enum):
    """How a rank ended."""

    RETURNED = "returned"
    """The scenario returned, and the rank handed in its own result."""
    RAISED = "raised"
    EXITED = "exited"
    """The process ended (``sys.exit``, ``os._exit``) without handing in a result."""
    KILLED = "killed"
    """A signal ended the process."""
    BLOCKED = "blocked"
    """In a communication call that could not complete when the run ended."""
    STUCK = "stuck"
    """Outside of communication when the deadline passed."""
    STOPPED = "stopped"
    """Ended by meshsim because another rank had failed."""
    NOT_STARTED = "not started"


@dataclass
class RankFailure:
    """An exception of a rank, as the rank saw it, recorded before any teardown."""

    type: str
    """Qualified name of the exception's class, e.g. ``ValueError``."""
    message: str
    traceback: str
    """As Python prints it, without the frames of the harness."""
    site: SourceLine | None = None
    """The innermost line of the user's code."""
    exception: BaseException | None = None
    """The object itself, where it could be brought here."""
    peer_lost: bool = False
    """A consequence of another rank's end (connection closed by peer), not a cause."""
    carried: Any = None
    """What the exception carries for whoever asked for the run: its attribute ``meshsim_carried``."""


@dataclass
class RankReport:
    """One rank's end. ``ended`` is in seconds since the run began; it orders first causes."""

    rank: int
    state: RankState
    value: Any = None
    failure: RankFailure | None = None
    exit_code: int | None = None
    signal: str | None = None
    stdout: str = ""
    stderr: str = ""
    stack: str = ""
    """The Python stack at the end of a rank that had not finished."""
    pending: TraceEvent | None = None
    """The call that the rank is waiting in."""
    trace: list[TraceEvent] = field(default_factory=list)
    ended: float = 0.0


@dataclass
class WorldReport:
    """Reports in rank order, the findings that the world knows for certain, and how the run ended."""

    ranks: list[RankReport]
    findings: list[Finding] = field(default_factory=list)
    deadline: float | None = None
    """The deadline in seconds, when it is what ended the run."""
    duration: float = 0.0
