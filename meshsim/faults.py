"""Faults to inject into a run: ``rank=3:crash@all_reduce#5``, ``tp=1:delay=0.5@*``.

A fault is an address, an action and a place: which ranks, what happens, and at which of their calls.
The address is ``rank=3`` or mesh coordinates (``tp=1``, ``dp=0,tp=1``); the place is an operation's name
or ``*``, and ``#n`` for the n-th such call of the rank, counted from 1. Without ``#n`` a delay happens
at every such call, everything else at the first. ``bitflip`` and ``nan`` need a call to which the rank gives
a tensor. A call that several faults address gets the first of them that is no delay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshsim.errors import UsageError
from meshsim.trace import TraceEvent

if TYPE_CHECKING:
    from meshlib import MeshPlan

ACTIONS = ("crash", "raise", "hang", "skip", "delay", "duplicate", "bitflip", "nan")
"""What can happen: the process dies (in the fake world the rank ends as if it had), the call raises
``InjectedFault``, never returns, is left out, comes late by so many seconds, is made twice, or goes out
with one bit of the input inverted, or with one element set to NaN (the dtype's largest value in integers)."""

DAMAGING = frozenset({"bitflip", "nan"})
"""Actions that need a tensor."""

FAULT_NOTE = "fault: "
"""How the note of an event begins at which a fault fired; the fault's text follows."""

_FORM = re.compile(
    r"(?P<address>[^:@#]+):(?P<action>[^@#=]+)(?:=(?P<seconds>[^@#]*))?@(?P<op>[^@#]+)(?:#(?P<count>[^@#]*))?"
)
_NEVER_FIRES_AT = frozenset({"new_group", "split_group"})
# isend and send look the same to a process group.
_RECORDED_AS = {"isend": "send", "irecv": "recv"}
_EXAMPLE = "the form is rank=3:crash@all_reduce#5 or tp=1:delay=0.5@*"


class InjectedFault(RuntimeError):
    """What the action ``raise`` raises on its rank."""


@dataclass(frozen=True)
class Fault:
    """One fault. ``str(fault)`` is the text that ``Fault.parse`` reads."""

    address: tuple[tuple[str, int], ...]
    """``(("rank", 3),)``, or mesh coordinates by axis."""
    action: str
    op: str = "*"
    count: int | None = None
    """Which of the rank's calls of ``op``, from 1; None for the first, or for every one of a delay."""
    seconds: float | None = None
    """Of a delay."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise UsageError(f"fault {self}: {problem}")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read a fault from text. A mistake is a ``UsageError`` that names it and the right form."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"fault {text!r} can't be read: {_EXAMPLE}")
        count = found["count"]
        seconds = found["seconds"]
        return cls(
            address=_parse_address(text, found["address"]),
            action=found["action"].strip(),
            op=found["op"].strip(),
            count=None if count is None else _parse_int(text, "the count after #", count),
            seconds=None if seconds is None else _parse_seconds(text, seconds),
        )

    def __str__(self) -> str:
        address = ",".join(f"{name}={value}" for name, value in self.address)
        seconds = "" if self.seconds is None else f"={self.seconds:g}"
        count = "" if self.count is None else f"#{self.count}"
        return f"{address}:{self.action}{seconds}@{self.op}{count}"

    def matches_rank(self, rank: int, plan: MeshPlan) -> bool:
        """Whether the address names this rank. Raises ``UnknownAxis`` for an axis the plan doesn't have."""
        if self.address[0][0] == "rank":
            return self.address[0][1] == rank
        return all(_coordinate(plan, axis, rank) == at for axis, at in self.address)

    def matches_call(self, event: TraceEvent) -> bool:
        """Whether the call counts for this fault. meshsim's own calls don't, nor does creating a group."""
        if event.internal or event.op in _NEVER_FIRES_AT or event.op.startswith("store"):
            return False
        return self.op in ("*", event.op) or _RECORDED_AS.get(self.op) == event.op

    def check(self, plan: MeshPlan) -> None:
        """Refuse an address that names no rank of the plan."""
        for name, value in self.address:
            size = plan.world_size if name == "rank" else plan.size(name)
            if not 0 <= value < size:
                raise UsageError(f"fault {self}: {name}={value} is out of range, valid are 0 to {size - 1}")

    def _problem(self) -> str | None:
        if self.action not in ACTIONS:
            return f"unknown action {self.action!r}, known are {', '.join(ACTIONS)}"
        if not self.address or len({name for name, _ in self.address}) != len(self.address):
            return f"the address must name each of its axes once; {_EXAMPLE}"
        if any(name == "rank" for name, _ in self.address) and len(self.address) > 1:
            return "the address is a rank or mesh coordinates, not both"
        if any(value < 0 for _, value in self.address):
            return "ranks and coordinates count from 0"
        if self.count is not None and self.count < 1:
            return f"the count after # is from 1, got {self.count}"
        if (self.action == "delay") != (self.seconds is not None):
            return "a delay needs its seconds, and nothing else takes any: delay=0.5"
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds >= 0):
            return f"a delay takes a finite number of seconds from 0 on, got {self.seconds:g}"
        if self.op in _NEVER_FIRES_AT:
            return f"faults don't fire at {self.op}; name a collective, send or recv, or *"
        if self.op != "*" and not re.fullmatch(r"\w+", self.op):
            return f"{self.op!r} is no operation's name; name one such as all_reduce, or *"
        return None


class FaultInjector:
    """Decides on one rank which fault fires at which call."""

    def __init__(self, faults: Iterable[Fault], rank: int, plan: MeshPlan) -> None:
        self._faults = [fault for fault in faults if fault.matches_rank(rank, plan)]
        self._seen = [0] * len(self._faults)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def before(self, event: TraceEvent, *, gives_tensor: bool = True) -> Fault | None:
        """The fault that fires at this call, noted in the event; None for a call that goes as written.

        Call it once for each call, in the rank's order. ``gives_tensor``: the rank hands in data, which is
        what ``bitflip`` and ``nan`` damage.
        """
        due = []
        for i, fault in enumerate(self._faults):
            can_fire = gives_tensor or fault.action not in DAMAGING
            if not fault.matches_call(event) or not (can_fire or fault.count):
                continue
            self._seen[i] += 1
            every = fault.count is None and fault.action == "delay"
            if can_fire and (every or self._seen[i] == (fault.count or 1)):
                due.append(fault)
        if not due:
            return None
        fired = next((fault for fault in due if fault.action != "delay"), due[0])
        event.note = FAULT_NOTE + str(fired) + (f"; {event.note}" if event.note else "")
        return fired


def parse_faults(faults: Sequence[str | Fault], plan: MeshPlan) -> tuple[Fault, ...]:
    """Read and check the faults of a run against its plan."""
    parsed = tuple(fault if isinstance(fault, Fault) else Fault.parse(fault) for fault in faults)
    for fault in parsed:
        fault.check(plan)
    return parsed


def fired_fault(event: TraceEvent) -> Fault | None:
    """The fault that fired at an event; None if none did."""
    if not event.note.startswith(FAULT_NOTE):
        return None
    return Fault.parse(event.note.removeprefix(FAULT_NOTE).split(";", 1)[0])


def _coordinate(plan: MeshPlan, axis: str, rank: int) -> int:
    """Place of a rank in its group along an axis, whichever view the axis is of."""
    return plan.group(axis, rank).index(rank)


def _parse_address(text: str, address: str) -> tuple[tuple[str, int], ...]:
    pairs = []
    for part in address.split(","):
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name.strip()):
            raise UsageError(f"fault {text!r}: the address {part.strip()!r} can't be read: {_EXAMPLE}")
        pairs.append((name.strip(), _parse_int(text, name.strip(), value)))
    return tuple(pairs)


def _parse_int(text: str, what: str, value: str) -> int:
    if not re.fullmatch(r"\s*-?\d+\s*", value, re.ASCII):
        raise UsageError(f"fault {text!r}: {what} must be a whole number, got {value.strip()!r}")
    return int(value)


def _parse_seconds(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"fault {text!r}: the delay must be in seconds, got {value.strip()!r}") from None
