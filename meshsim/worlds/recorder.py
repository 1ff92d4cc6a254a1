"""One rank's record: its trace, the checks before each call, and what was seen to go wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from meshsim import torch_private
from meshsim.source import user_line
from meshsim.trace import CallState, TraceEvent
from meshsim.verdict import Finding
from meshsim.worlds.calls import Call, Tensors
from meshsim.worlds.watch import AccessWatch

if TYPE_CHECKING:
    from meshsim.worlds.injection import Injection


class Recorder:
    """One rank's trace, the checks before each call, and what was seen to go wrong."""

    def __init__(self, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rank = rank
        self.events: list[TraceEvent] = []
        self.internal = False
        """While true, calls are meshsim's own (binding the mesh)."""
        self.backend = "gloo"
        """What the rank's groups run on, and with which kind of device."""
        self.device = torch.device("cpu")
        self.axis_of: Callable[[tuple[int, ...]], str] = lambda members: ""
        self.injection: Injection | None = None
        """The faults of the run that concern this rank."""
        self.checks: tuple[Callable[[Call], None], ...] = ()
        """Called before a call is handed over; may raise (faults, refusals)."""
        self.findings: list[Finding] = []
        """What this rank was seen to do wrong, besides what the traces tell."""
        self.moving_data = False
        """While true, tensors are touched by the harness, not by the scenario."""
        self.watch = AccessWatch(rank, self.findings.append, lambda: self.moving_data or self.internal)
        self._clock = clock
        self._began = clock()
        self.closed = False
        """The rank's program is over; waiting for what it left behind changes nothing any more."""
        self._open: dict[int, Tensors] = {}
        self.groups_asked_for = 0
        """How often the rank has called ``new_group``."""

    def elapsed(self) -> float:
        return self._clock() - self._began

    def record(
        self, op: str, members: tuple[int, ...], group_name: str, number: int, **facts: Any
    ) -> TraceEvent:
        """Append the event of a call that is about to be made."""
        event = TraceEvent(
            rank=self.rank,
            index=len(self.events),
            op=op,
            group=members,
            group_name=group_name,
            number=number,
            site=None if self.internal else user_line(sys._getframe(2)),
            internal=self.internal,
            started=self.elapsed(),
            **facts,
        )
        self.events.append(event)
        return event

    def again(self, call: Call, number: int) -> Call:
        """The same call made once more, with an event of its own."""
        event = replace(call.event, index=len(self.events), number=number)
        self.events.append(event)
        return replace(call, event=event)

    def opened(self, call: Call) -> None:
        """A work was handed out."""
        self._open[call.event.index] = call.outputs

    def close(self) -> None:
        """End the record, and take back the works that functional collectives left with torch.

        torch keeps such a work until its tensor is waited for. A work is a Python object, and one that is
        left when the interpreter ends would crash the process.
        """
        self.closed = True
        self.watch.close()
        for tensors in self._open.values():
            torch_private.forget_works_of(tensors)
        self._open.clear()

    def completed(self, event: TraceEvent) -> None:
        self.watch.end(event)
        self._open.pop(event.index, None)
        if event.state is CallState.ISSUED:
            event.state = CallState.COMPLETED
            event.finished = self.elapsed()

    def failed(self, event: TraceEvent) -> None:
        self.watch.end(event)
        event.state = CallState.FAILED
        event.finished = self.elapsed()

    def pending(self) -> TraceEvent | None:
        """The last call that was issued and not completed."""
        for event in reversed(self.events):
            if event.state is CallState.ISSUED:
                return event
        return None
