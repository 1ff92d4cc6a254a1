"""Disagreements that traces prove, whatever comes after: for runs that are over and for runs under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshsim.checker.compare import (
    P2P_OPS,
    RECV_OPS,
    compare_calls,
    compare_group_creation,
    compare_p2p,
    is_collective,
)
from meshsim.checker.replay import Replay, is_local_creation, replay, was_left_out
from meshsim.trace import Trace, TraceEvent
from meshsim.verdict import Finding, Severity

if TYPE_CHECKING:
    from meshlib import MeshPlan


def mismatch_is_certain(
    plan: MeshPlan | None, traces: Trace | Sequence[Sequence[TraceEvent]]
) -> Finding | None:
    """The first disagreement that traces prove, be they partial or whole; None if they prove none.

    What two ranks disagree about at one place no later call can mend. Warnings are left out.
    """
    events = traces.events if isinstance(traces, Trace) else traces
    return first_mismatch(replay(events))


def first_mismatch(calls: Replay) -> Finding | None:
    """The disagreement that came first in the ranks' own order; warnings are left out."""
    found = [(at, finding) for at, finding in _mismatches(calls) if finding.severity is not Severity.WARNING]
    return min(found, key=lambda entry: entry[0])[1] if found else None


def mismatch_warnings(calls: Replay) -> list[Finding]:
    """Disagreements that the call survives, each kind and summary once."""
    found = sorted(
        (
            (at, i, finding)
            for i, (at, finding) in enumerate(_mismatches(calls))
            if finding.severity is Severity.WARNING
        ),
        key=lambda entry: entry[:2],
    )
    return list({(finding.kind, _lines(finding)): finding for _, _, finding in reversed(found)}.values())[
        ::-1
    ]


def _mismatches(calls: Replay) -> list[tuple[int, Finding]]:
    """Every disagreement, with the place in a rank's trace at which it came first."""
    found = []
    for events in calls.slots.values():
        finding = compare_calls(events)
        if finding is not None:
            found.append((min(event.index for event in events), finding))
    for send, recv in calls.pairs():
        finding = compare_p2p(send, recv)
        if finding is not None:
            found.append((min(send.index, recv.index), finding))
    for number, creations in enumerate(calls.creations):
        finding = compare_group_creation(creations, number=number)
        if finding is not None:
            found.append((min(event.index for event in creations), finding))
            break
    return found


def _lines(finding: Finding) -> tuple[object, ...]:
    return tuple((row["file"], row["line"]) for row in finding.details.get("table", ()))


class Matcher:
    """Takes the calls of all ranks as they are made and names a disagreement at once.

    For worlds that see every call: memory is bounded by the calls under way. ``warnings`` holds the warnings.
    """

    def __init__(self, plan: MeshPlan | None = None) -> None:
        self.plan = plan
        self.warnings: list[Finding] = []
        self._issued: dict[tuple[tuple[int, ...], str, int], int] = {}
        self._slots: dict[tuple[tuple[int, ...], str, int], list[TraceEvent]] = {}
        self._channels: dict[tuple[object, ...], list[TraceEvent]] = {}
        self._created: dict[int, int] = {}
        self._creations: dict[int, TraceEvent] = {}

    def add(self, event: TraceEvent) -> Finding | None:
        """One more call. Add each rank's calls in its own order; ranks may interleave as they like."""
        if was_left_out(event):
            return None
        if event.op in P2P_OPS:
            finding = self._add_p2p(event) if event.peer is not None else None
        elif is_collective(event):
            finding = self._add_collective(event)
        else:
            finding = self._add_creation(event)
        if finding is not None and finding.severity is Severity.WARNING:
            self.warnings.append(finding)
            return None
        return finding

    def _add_collective(self, event: TraceEvent) -> Finding | None:
        mine = (event.group, event.group_name, event.rank)
        place = self._issued.get(mine, 0)
        self._issued[mine] = place + 1
        slot = (event.group, event.group_name, place)
        events = self._slots.setdefault(slot, [])
        events.append(event)
        if len(events) == len(event.group):
            del self._slots[slot]
            return compare_calls(events, self.plan)
        finding = compare_calls([events[0], event], self.plan)
        if finding is None or finding.severity is Severity.WARNING:
            return None
        return compare_calls(events, self.plan)

    def _add_p2p(self, event: TraceEvent) -> Finding | None:
        receives = event.op in RECV_OPS
        ends = (event.peer, event.rank) if receives else (event.rank, event.peer)
        channel = (event.group, event.group_name, *ends, event.tag)
        queue = self._channels.setdefault(channel, [])
        if not queue or (queue[0].op in RECV_OPS) is receives:
            queue.append(event)
            return None
        other = queue.pop(0)
        return compare_p2p(other, event, self.plan) if receives else compare_p2p(event, other, self.plan)

    def _add_creation(self, event: TraceEvent) -> Finding | None:
        if event.internal or is_local_creation(event):
            return None
        number = self._created.get(event.rank, 0)
        self._created[event.rank] = number + 1
        first = self._creations.setdefault(number, event)
        return compare_group_creation([first, event], number=number) if first is not event else None
