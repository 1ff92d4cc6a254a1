"""The verdict: what came of a run, with the ranks, operation and source line at fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class VerdictKind(str, Enum):
    """Every way a run can end. A member equals its text: ``verdict.kind == "deadlock"``.

    What each kind means on each backend, and what to do about it, is in ``meshsim.checker.kinds``.
    """

    PASSED = "passed"
    """Every rank returned and nothing was found, warnings aside."""

    # How ranks end.
    RAISED = "raised"
    """A rank raised an exception."""
    EXITED = "exited"
    """A rank ended its process without handing in a result."""
    KILLED = "killed"
    """A signal ended a rank."""
    STUCK = "stuck"
    """A rank spins, sleeps or blocks outside of communication."""
    TIMEOUT = "timeout"
    """The deadline passed and the traces prove nothing more."""
    DEADLOCK = "deadlock"
    """Ranks wait for a call that will never come: a rank missed it, or returned early."""

    # One call, and the ranks disagree about it.
    OPERATION_MISMATCH = "operation mismatch"
    """Ranks of a group made different calls at the same place in its order."""
    REDUCE_OP_MISMATCH = "reduce op mismatch"
    """Ranks reduce with different operators."""
    DTYPE_MISMATCH = "dtype mismatch"
    """Ranks gave tensors of different dtypes."""
    COUNT_MISMATCH = "count mismatch"
    """Ranks gave different numbers of elements."""
    SHAPE_MISMATCH = "shape mismatch"
    """Ranks gave the same number of elements in different shapes."""
    ROOT_MISMATCH = "root mismatch"
    """Ranks named different source or destination ranks."""
    SPLITS_MISMATCH = "splits mismatch"
    """What a rank sends to another in an all-to-all isn't what that one expects."""

    # The order and the number of calls.
    EXTRA_CALL = "extra call"
    """A few ranks made a call that most of their group never makes."""
    SWAPPED_OPERATIONS = "swapped operations"
    """Ranks made the same calls on a group in another order, and the calls look alike."""
    GROUP_ORDER_CYCLE = "group order cycle"
    """Ranks use two groups, or a ring of groups, in opposite order."""
    HOST_SYNC_CYCLE = "host sync cycle"
    """Ranks wait for each other in a circle that goes through a barrier, a ``wait()`` or a store."""

    # Groups and their members.
    GROUP_CREATION_MISMATCH = "group creation mismatch"
    """Ranks created different groups at the same place in the order of creation."""
    GROUP_CREATION_BY_MEMBERS_ONLY = "group creation by members only"
    """Only some ranks of the world took part in ``new_group``."""
    NON_MEMBER_CALL = "non member call"
    """A rank called an operation on a group that it isn't in."""
    WRONG_RANK_KIND = "wrong rank kind"
    """A global rank was given where a rank in the group is meant, or the reverse."""
    PLAN_MISMATCH = "plan mismatch"
    """Ranks built different meshes."""

    # Point-to-point.
    SEND_RECV_CYCLE = "send recv cycle"
    """Ranks wait in sends or receives for each other in a circle."""
    UNMATCHED_SEND = "unmatched send"
    """A send that nobody receives."""
    UNMATCHED_RECV = "unmatched recv"
    """A receive to which nobody sends."""
    P2P_COUNT_MISMATCH = "p2p count mismatch"
    """Sender and receiver have different numbers of elements."""
    P2P_DTYPE_MISMATCH = "p2p dtype mismatch"
    """Sender and receiver have different dtypes."""
    P2P_TAG_MISMATCH = "p2p tag mismatch"
    """Sender and receiver wait for each other with different tags."""

    # Buffers and works.
    READ_BEFORE_WAIT = "read before wait"
    """A result was read before ``wait()``."""
    WRITE_BEFORE_WAIT = "write before wait"
    """A buffer was written before ``wait()``."""
    NEVER_WAITED = "never waited"
    """An asynchronous work was never waited for."""
    UNDEFINED_RESULT = "undefined result"
    """A buffer was used whose value the operation leaves undefined (``reduce`` away from its destination)."""
    NON_CONTIGUOUS_BUFFER = "non contiguous buffer"
    """A tensor isn't contiguous, and the backend doesn't look."""
    OVERLAPPING_BUFFERS = "overlapping buffers"
    """Two buffers of one call, or of calls under way at once, share memory."""

    # What the backend or the scenario asks for.
    UNSUPPORTED = "unsupported"
    """The backend doesn't have this operation, dtype or reduce op."""
    SHOULD_BE_SAME = "should be same"
    """Data that must be equal along an axis differ."""
    SHOULD_DIFFER = "should differ"
    """Data that must differ along an axis are equal."""

    FAULT_NOT_FIRED = "fault not fired"
    """A fault that the run was to have never came to its call, so nothing was tested by it."""

    NOT_RUN = "not run"
    """The scenario doesn't support the topology; the summary is the reason. Neither a pass nor a failure."""


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
