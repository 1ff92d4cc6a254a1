"""Traces laid side by side: which calls of different ranks belong together.

Collectives meet by their place in their group's order, sends and receives by source, destination and tag,
group creations by their place in each rank's order of creation. Linear in the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshsim.checker.compare import (
    CREATION_OPS,
    LOCAL_SYNCHRONIZATION,
    NON_MEMBER,
    RECV_OPS,
    SEND_OPS,
    canonical_op,
    is_collective,
    is_store_wait,
)
from meshsim.faults import fired_fault
from meshsim.trace import CallState, TraceEvent

Slot = tuple[int, int]
"""A place in a group's order: the group's index in ``Replay.groups``, and the place from 0."""
Channel = tuple[int, int, int, int]
"""Where sends meet receives: group index, source, destination, tag."""


@dataclass
class Replay:
    """The calls of all ranks, by where they meet. Build it with ``replay``."""

    traces: Sequence[Sequence[TraceEvent]]
    groups: list[tuple[int, ...]] = field(default_factory=list)
    slots: dict[Slot, list[TraceEvent]] = field(default_factory=dict)
    slot_of: dict[int, Slot] = field(default_factory=dict)
    """By ``id(event)``, for collectives."""
    sends: dict[Channel, list[TraceEvent]] = field(default_factory=dict)
    recvs: dict[Channel, list[TraceEvent]] = field(default_factory=dict)
    channel_of: dict[int, Channel] = field(default_factory=dict)
    """By ``id(event)``, for sends and receives whose peer is known."""
    open_recvs: dict[tuple[int, int, int], list[TraceEvent]] = field(default_factory=dict)
    """Receives from any source that nothing has matched, by group index, destination and tag."""
    creations: list[list[TraceEvent]] = field(default_factory=list)
    """The ranks' calls at each place of the order of creation."""
    complete: bool = True
    """Whether every trace begins at the rank's first call."""

    def members(self, slot: Slot) -> tuple[int, ...]:
        """The ranks that the slot's call needs."""
        return self.groups[slot[0]]

    def missing(self, slot: Slot) -> list[int]:
        """Members that haven't made the slot's call."""
        arrived = {event.rank for event in self.slots[slot]}
        return [rank for rank in self.members(slot) if rank not in arrived]

    def pairs(self) -> Iterator[tuple[TraceEvent, TraceEvent]]:
        """Sends with the receives that they meet, first with first."""
        if self.complete:
            for channel, sends in self.sends.items():
                yield from zip(sends, self.recvs.get(channel, ()), strict=False)

    def partner_has_come(self, event: TraceEvent) -> bool:
        """Whether a send's receive, or a receive's send, has been called."""
        channel = self.channel_of.get(id(event))
        if channel is None:
            return False
        mine, theirs = self.sends.get(channel, []), self.recvs.get(channel, [])
        if event.op in RECV_OPS:
            mine, theirs = theirs, mine
        place = next(i for i, other in enumerate(mine) if other is event)
        if place < len(theirs):
            return True
        group, _, destination, tag = channel
        return event.op in SEND_OPS and bool(self.open_recvs.get((group, destination, tag)))


def replay(traces: Sequence[Sequence[TraceEvent]]) -> Replay:
    """Lay the ranks' traces side by side. Calls that a fault left out count as not made."""
    found = Replay(traces, complete=all(not trace or trace[0].index == 0 for trace in traces))
    indices: dict[tuple[tuple[int, ...], str], int] = {}
    # Hashing a group of thousands of ranks for every event would cost more than all the rest.
    known: dict[tuple[int, str], int] = {}
    for trace in traces:
        places: dict[int, int] = {}
        created = 0
        whole = not trace or trace[0].index == 0
        for event in trace:
            if was_left_out(event) or NON_MEMBER in event.note or is_store_wait(event):
                continue
            if event.op in CREATION_OPS:
                if not event.internal and not is_local_creation(event):
                    if created == len(found.creations):
                        found.creations.append([])
                    found.creations[created].append(event)
                    created += 1
                continue
            group = known.get((id(event.group), event.group_name))
            if group is None:
                group = indices.setdefault((event.group, event.group_name), len(indices))
                if group == len(found.groups):
                    found.groups.append(event.group)
                known[(id(event.group), event.group_name)] = group
            if is_collective(event):
                place = places.get(group, 0) if whole else event.number
                places[group] = place + 1
                slot = (group, place)
                found.slots.setdefault(slot, []).append(event)
                found.slot_of[id(event)] = slot
            else:
                _add_p2p(found, event, group)
    return found


def _add_p2p(found: Replay, event: TraceEvent, group: int) -> None:
    if event.peer is None:
        if event.state is CallState.ISSUED:
            found.open_recvs.setdefault((group, event.rank, event.tag), []).append(event)
        return
    sends = event.op in SEND_OPS
    ends = (event.rank, event.peer) if sends else (event.peer, event.rank)
    channel = (group, *ends, event.tag)
    (found.sends if sends else found.recvs).setdefault(channel, []).append(event)
    found.channel_of[id(event)] = channel


def was_left_out(event: TraceEvent) -> bool:
    """Whether a fault kept the call from being made."""
    fault = fired_fault(event) if event.note else None
    return fault is not None and fault.action in ("skip", "crash", "raise", "hang")


def is_local_creation(event: TraceEvent) -> bool:
    """Whether only the members create the group: c10d names such groups by a hash, others by a number."""
    if LOCAL_SYNCHRONIZATION in event.note:
        return True
    return bool(event.group_name) and not event.group_name.isdigit()


def op_number(trace: Sequence[TraceEvent], event: TraceEvent) -> int:
    """Which call of its operation on its group this is for the rank, from 1, without meshsim's own."""
    if trace and trace[0].index > 0:
        return event.number + 1
    op = canonical_op(event.op)
    return 1 + sum(
        1
        for other in trace
        if other.index < event.index
        and not other.internal
        and canonical_op(other.op) == op
        and other.group_name == event.group_name
        and (other.group is event.group or other.group == event.group)
        and (other.op not in SEND_OPS | RECV_OPS or (other.peer, other.tag) == (event.peer, event.tag))
    )
