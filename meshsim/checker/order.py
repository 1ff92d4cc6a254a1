"""The order of calls: look-alike calls swapped within a group, and groups used in opposite order."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product

from meshsim.checker.compare import compare_calls, culprits, details_of, partition
from meshsim.checker.kinds import advice_for, severity_of
from meshsim.checker.replay import Replay, Slot, op_number
from meshsim.checker.wording import group_name, named_ranks, site_name, table_row, tensor_name
from meshsim.trace import SourceLine, TraceEvent
from meshsim.verdict import Finding, Severity, VerdictKind

Look = tuple[str, str, str, int | None, tuple[tuple[int, ...], ...]]


def swapped_operations(calls: Replay) -> list[Finding]:
    """Look-alike calls that two ranks made in opposite order on one group; at most one finding a group.

    Ranks may make the same call from different lines. Only a crossing counts: one rank was at A and then at B
    where another was at B and then at A, and only the line or the tensor's name tells the calls apart.
    """
    findings: dict[int, Finding] = {}
    seen: dict[int, dict[Hashable, int]] = {}
    for slot, events in calls.slots.items():
        group, place = slot
        if group in findings or len(events) < 2 or _look_alike(events):
            continue
        if compare_calls(events) is not None:
            continue
        crossed = _crossing(seen.setdefault(group, {}), place, events)
        if crossed is not None:
            findings[group] = _swapped(calls, (group, crossed), slot)
    return list(findings.values())


def _look_alike(events: Sequence[TraceEvent]) -> bool:
    """Whether all ranks called at one line, with variables of one name."""
    site, names = events[0].site, events[0].names
    return all((e.site is site or e.site == site) and e.names == names for e in events)


def _crossing(seen: dict[Hashable, int], place: int, events: Sequence[TraceEvent]) -> int | None:
    """The earlier place at which a rank and the group's first rank stood the other way round."""
    reference = min(events, key=lambda event: event.rank)
    for event in events:
        for mine, other in _ways_apart(reference, event):
            found = seen.get((event.rank, _look(event), other, mine))
            if found is not None:
                return found
            seen.setdefault((event.rank, _look(event), mine, other), place)
    return None


def _ways_apart(one: TraceEvent, other: TraceEvent) -> list[tuple[Hashable, Hashable]]:
    """What tells two ranks' calls apart: lines, names written there, variables that hold the tensor."""
    if one.site is None or other.site is None:
        return []
    ways: list[tuple[Hashable, Hashable]] = []
    if one.site != other.site:
        ours, theirs = tensor_name(one), tensor_name(other)
        if ours is None or theirs is None or ours != theirs:
            ways.append((_line(one.site), _line(other.site)))
        if ours is not None and theirs is not None and ours != theirs:
            ways.append((_name(one.site, ours), _name(other.site, theirs)))
    apart = [[n for n in a.names if n not in b.names] for a, b in ((one, other), (other, one))]
    ways += [(("variable", a), ("variable", b)) for a, b in product(*apart)]
    return ways


def _line(site: SourceLine) -> Hashable:
    return ("line", site.file, site.line)


def _name(site: SourceLine, name: str) -> Hashable:
    return ("name", site.file, site.function, name)


def _look(event: TraceEvent) -> Look:
    return (event.op, event.dtype, event.reduce_op, event.root, event.shapes)


def _swapped(calls: Replay, first: Slot, second: Slot) -> Finding:
    kind = VerdictKind.SWAPPED_OPERATIONS
    events = calls.slots[first]
    parts = partition(events, _place)
    ranks, waiting = culprits(parts)
    event = parts[0].event
    details = details_of(kind, event, parts, number=_number(calls, event))
    details["second"] = [table_row(part.ranks, part.event) for part in partition(calls.slots[second], _place)]
    told = "; ".join(_told(calls, slot) for slot in (first, second))
    return Finding(
        kind,
        f"ranks call {event.op} on {group_name(event)} in another order, the calls look alike: {told}",
        ranks,
        waiting,
        details,
        severity_of(kind),
    )


def _told(calls: Replay, slot: Slot) -> str:
    parts = partition(calls.slots[slot], _place)
    common = set.intersection(*(set(part.event.names) for part in parts))
    shown = [f"{named_ranks(part.ranks)} {_what(part.event, common)}" for part in parts[:4]]
    return f"call {_number(calls, parts[0].event)}: {', '.join(shown)}"


def _place(event: TraceEvent) -> Hashable:
    return (event.site, event.names)


def _what(event: TraceEvent, common: set[str]) -> str:
    own = [name.partition(":")[2] for name in event.names if name not in common]
    name = tensor_name(event)
    if own and name not in own:
        name = own[0]
    return f"{repr(name) + ' ' if name is not None else ''}at {site_name(event.site)}"


def _number(calls: Replay, event: TraceEvent) -> int:
    trace = calls.traces[event.rank] if event.rank < len(calls.traces) else ()
    return op_number(trace, event)


def opposite_group_order(calls: Replay) -> Finding | None:
    """Groups that ranks used in opposite order in a run that got through; None if one order holds for all.

    Synchronous calls would have stood still. Asynchronous ones get through on gloo, while NCCL needs the
    communicators in one order on every rank.
    """
    if not any(event.async_op for events in calls.slots.values() for event in events):
        return None
    after = _followers(calls)
    left = _in_a_cycle(after)
    cycle = _short_cycle(after, left)
    if cycle is None:
        return None
    kind = VerdictKind.GROUP_ORDER_CYCLE
    slots = list(dict.fromkeys(cycle))
    ranks = sorted(
        {event.rank for slot in slots for event in calls.slots[slot]} & _users_of_two(calls, slots)
    )
    told = "; ".join(_order_of(calls, rank, slots) for rank in ranks[:4])
    rows = [
        table_row((event.rank,), event)
        for slot in slots
        for event in calls.slots[slot]
        if event.rank in ranks
    ]
    summary = f"groups are used in opposite order by {named_ranks(ranks)}: {told}"
    severity = Severity.HAZARD
    details = {"table": rows, "advice": advice_for(kind), "groups": [list(calls.members(s)) for s in slots]}
    return Finding(kind, summary, tuple(ranks), (), details, severity)


def _followers(calls: Replay) -> dict[Slot, set[Slot]]:
    """Which collective comes next on some rank, on whatever group."""
    after: dict[Slot, set[Slot]] = {slot: set() for slot in calls.slots}
    for trace in calls.traces:
        last: Slot | None = None
        for event in trace:
            slot = calls.slot_of.get(id(event))
            if slot is not None:
                if last is not None:
                    after[last].add(slot)
                last = slot
    return after


def _in_a_cycle(after: dict[Slot, set[Slot]]) -> set[Slot]:
    """What is left when everything that has a place in some common order is taken away, from both ends."""
    left = set(after)
    before: dict[Slot, set[Slot]] = {slot: set() for slot in after}
    for slot, next_slots in after.items():
        for other in next_slots:
            before[other].add(slot)
    for edges, back in ((before, after), (after, before)):
        degree = {slot: len(edges[slot] & left) for slot in left}
        free = [slot for slot, n in degree.items() if n == 0]
        while free:
            slot = free.pop()
            left.discard(slot)
            for other in back[slot]:
                if other in left:
                    degree[other] -= 1
                    if degree[other] == 0:
                        free.append(other)
    return left


def _short_cycle(after: dict[Slot, set[Slot]], left: set[Slot]) -> list[Slot] | None:
    """A shortest cycle through the earliest slot that is in one."""
    for start in sorted(left, key=lambda slot: (slot[1], slot[0])):
        came_from: dict[Slot, Slot] = {}
        front = [start]
        while front:
            following = []
            for slot in front:
                for other in sorted(after[slot] & left):
                    if other == start:
                        path = [slot]
                        while path[-1] != start:
                            path.append(came_from[path[-1]])
                        return path[::-1]
                    if other not in came_from:
                        came_from[other] = slot
                        following.append(other)
            front = following
    return None


def _users_of_two(calls: Replay, slots: Sequence[Slot]) -> set[int]:
    """Ranks that make at least two of the calls: those that put them in an order."""
    count: dict[int, int] = {}
    for slot in slots:
        for event in calls.slots[slot]:
            count[event.rank] = count.get(event.rank, 0) + 1
    return {rank for rank, n in count.items() if n > 1}


def _order_of(calls: Replay, rank: int, slots: Sequence[Slot]) -> str:
    mine = [event for slot in slots for event in calls.slots[slot] if event.rank == rank]
    mine.sort(key=lambda event: event.index)
    steps = ", then ".join(f"{e.op} on {group_name(e)} at {site_name(e.site)}" for e in mine[:4])
    return f"rank {rank} {steps}"
