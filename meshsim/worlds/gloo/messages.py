"""What the parent and a worker say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshsim.report import RankFailure, RankState
    from meshsim.trace import TraceEvent
    from meshsim.verdict import Finding


@dataclass(frozen=True)
class Surroundings:
    """What a rank takes over from the parent, so that it runs as the parent would have run it."""

    environ: dict[str, str]
    cwd: str
    sys_path: list[str]
    argv: list[str]


# From the parent


@dataclass(frozen=True)
class RunOrder:
    """Run one rank. The pickled request travels beside it."""

    run: int
    rank: int
    world_size: int
    node_size: int
    store_port: int
    began: float
    """``time.monotonic()`` of the parent, which all processes of one machine share."""
    surroundings: Surroundings


@dataclass(frozen=True)
class Release:
    """All ranks have ended: tear down. Until then connections stay open, so that nobody loses a peer."""

    run: int


@dataclass(frozen=True)
class Inspect:
    """Say where the rank is: its stacks and its trace."""

    run: int


@dataclass(frozen=True)
class StoreReply:
    """The answer to the :class:`StoreCall` or :class:`Meeting` of that number."""

    run: int
    number: int
    value: Any = None
    error: str = ""


# From a worker


@dataclass(frozen=True)
class StoreCall:
    """An operation on the run's store."""

    run: int
    number: int
    operation: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Meeting:
    """One member's part in starting a group. The members of one group give the same ``key``."""

    run: int
    number: int
    key: tuple[Any, ...]
    size: int
    member: int
    value: bytes


@dataclass(frozen=True)
class Started:
    """The rank has joined its default process group."""

    run: int


@dataclass(frozen=True)
class Ended:
    """The rank's own account of its end; the pickled return value or exception travels beside it."""

    run: int
    state: RankState
    ended: float
    failure: RankFailure | None = None
    exit_code: int | None = None
    trace: list[TraceEvent] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Whereabouts:
    """A rank that has not ended: the stacks of its threads, and what it has communicated so far."""

    run: int
    stack: str
    pending: TraceEvent | None
    in_communication: bool
    trace: list[TraceEvent] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    asked: bool = False
    """An answer to :class:`Inspect`, not a sign of life of a rank that waits."""


@dataclass(frozen=True)
class Ready:
    """The slate is clean again; or ``dirty`` says why this worker must not be used again."""

    run: int
    dirty: str = ""
