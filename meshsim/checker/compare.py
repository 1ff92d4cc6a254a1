"""Comparing what ranks of one group did at one place in its order. Each function looks at one place only.

What is compared, by operation: barriers and object collectives by name (and root); every other collective
by reduce op, dtype and number of elements, tensor by tensor; all-to-alls pair by pair; shapes last.
The shapes of an event are those of the tensors that the rank hands in: the input, or the list of inputs;
for ``broadcast`` the tensor on every rank; for ``scatter`` the list on the source and the output elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from meshsim.checker.kinds import advice_for, severity_of
from meshsim.checker.wording import (
    call_name,
    group_name,
    member_list,
    named_ranks,
    rank_ranges,
    shape_name,
    site_name,
    site_names,
    table_row,
    verb,
)
from meshsim.trace import TraceEvent
from meshsim.verdict import Finding, Severity, VerdictKind

if TYPE_CHECKING:
    from meshlib import MeshPlan

CREATION_OPS = frozenset({"new_group", "split_group"})
SEND_OPS = frozenset({"send", "isend"})
RECV_OPS = frozenset({"recv", "irecv"})
P2P_OPS = SEND_OPS | RECV_OPS
BARRIERS = frozenset({"barrier", "monitored_barrier"})
NON_MEMBER = "not a member"
"""In the ``note`` of a call on a group that the rank isn't in; c10d only warns and returns."""
LOCAL_SYNCHRONIZATION = "local_synchronization"
"""In the ``note`` of a ``new_group`` that only its members call, rightly."""

_SPELLINGS = {
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}
_REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
_ALL_TO_ALL = frozenset({"all_to_all", "all_to_all_single", "permute_tensor"})
# A broadcast or scatter only moves a run of elements, which the receiver may want in another shape.
_ONLY_COUNTS_MATTER = frozenset({"broadcast", "broadcast_coalesced", "scatter"})


class CallPart(NamedTuple):
    """Ranks that did the same, in order, with their calls."""

    ranks: tuple[int, ...]
    events: tuple[TraceEvent, ...]

    @property
    def event(self) -> TraceEvent:
        """The call of the first of them."""
        return self.events[0]


def is_collective(event: TraceEvent) -> bool:
    """Whether all members of the event's group must make the call."""
    return event.op not in P2P_OPS and event.op not in CREATION_OPS and not is_store_wait(event)


def is_store_wait(event: TraceEvent) -> bool:
    """Whether the rank waits for a key of the store, which any rank may set."""
    return event.op.startswith("store")


def canonical_op(op: str) -> str:
    """The operation's name without differences of spelling between torch's versions."""
    return _SPELLINGS.get(op, op)


def is_reduction(op: str) -> bool:
    """Whether the operation has a reduce op."""
    return op.startswith(_REDUCTIONS)


def only_name_matters(op: str) -> bool:
    """Whether the operation has no tensors of its own to compare."""
    return op in BARRIERS or "object" in op


def compare_calls(events: Sequence[TraceEvent], plan: MeshPlan | None = None) -> Finding | None:
    """The first disagreement among members' calls at one place in their group's order; None if they agree.

    ``events`` are of different ranks and of one group; they needn't be all members' (what two ranks disagree
    about, the others can't mend). A finding of severity ``WARNING`` is to be kept; the call may go on.
    Takes time linear in the events (and in the split sizes of an all-to-all).
    """
    if len(events) < 2 or _all_alike(events):
        return None
    op = canonical_op(events[0].op)
    for kind, word, key, applies in _ASPECTS:
        if kind is VerdictKind.OPERATION_MISMATCH or applies(op):
            parts = partition(events, key)
            if len(parts) > 1:
                return _disagreement(kind, word, events, parts)
    return _splits_disagreement(events) if op in _ALL_TO_ALL else None


def compare_p2p(send: TraceEvent, recv: TraceEvent, plan: MeshPlan | None = None) -> Finding | None:
    """What a matched send and receive disagree about; None if they agree."""
    aspects: tuple[tuple[VerdictKind, str, Any, Any], ...] = (
        (VerdictKind.P2P_DTYPE_MISMATCH, "dtype", send.dtype, recv.dtype),
        (VerdictKind.P2P_COUNT_MISMATCH, "element count", send.numel, recv.numel),
        (VerdictKind.SHAPE_MISMATCH, "shape", send.shapes, recv.shapes),
    )
    for kind, word, sent, received in aspects:
        if sent == received or (word == "dtype" and not (sent and received)):
            continue
        if word == "shape":
            sent, received = shape_name(send), shape_name(recv)
        summary = (
            f"{word} of {send.op} and {recv.op} differ: rank {send.rank} sends {sent} to rank {recv.rank} "
            f"at {site_name(send.site)}, rank {recv.rank} receives {received} at {site_name(recv.site)}"
        )
        return Finding(
            kind,
            summary,
            ranks=tuple(sorted((send.rank, recv.rank))),
            details=details_of(
                kind, send, [CallPart((send.rank,), (send,)), CallPart((recv.rank,), (recv,))]
            ),
            severity=Severity.WARNING if word == "shape" else severity_of(kind),
        )
    return None


def compare_group_creation(
    events: Sequence[TraceEvent], world: Collection[int] | None = None, *, number: int | None = None
) -> Finding | None:
    """What ranks disagree about in creating one group.

    ``events`` are the ranks' calls at one place in the order of creation, ``number`` (from 0) that place.
    ``world``: the ranks that must take part; give it only once it is certain that the missing ones won't.
    Calls with local synchronisation only concern their members and are passed over.
    """
    called = [event for event in events if LOCAL_SYNCHRONIZATION not in event.note]
    if not called:
        return None
    first = called[0]
    place = (first.number if number is None else number) + 1
    parts = partition(called, lambda event: (event.op, event.group))
    if len(parts) > 1:
        asked = ", ".join(
            f"{named_ranks(part.ranks)}{' asked' if i == 0 else ''} for {member_list(part.event.group)}"
            for i, part in enumerate(parts)
        )
        kind = VerdictKind.GROUP_CREATION_MISMATCH
        ranks, waiting = culprits(parts)
        return Finding(
            kind,
            f"{first.op} number {place}: {asked}",
            ranks,
            waiting,
            details_of(kind, first, parts, number=place),
            severity_of(kind),
        )
    missing = sorted(set(world or ()) - {event.rank for event in events})
    if not missing:
        return None
    kind = VerdictKind.GROUP_CREATION_BY_MEMBERS_ONLY
    here = parts[0].ranks
    details = details_of(kind, first, parts, number=place)
    return Finding(
        kind,
        f"{first.op} on {named_ranks(here)}, not on {rank_ranges(missing)}: works on gloo, hangs on NCCL"
        f" ({first.op} number {place}, {member_list(first.group)}, at {site_name(first.site)})",
        ranks=here,
        details={**details, "missing": missing},
        severity=severity_of(kind),
    )


def culprits(parts: Sequence[CallPart]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The odd ones out and the rest; all are culprits when no part is a majority."""
    everyone = tuple(sorted(rank for part in parts for rank in part.ranks))
    largest = max(parts, key=lambda part: len(part.ranks))
    if 2 * len(largest.ranks) <= len(everyone):
        return everyone, ()
    majority = set(largest.ranks)
    return tuple(rank for rank in everyone if rank not in majority), tuple(sorted(majority))


def details_of(
    kind: VerdictKind, event: TraceEvent, parts: Sequence[CallPart], *, number: int | None = None
) -> dict[str, Any]:
    """The JSON-safe part of a finding: operation, group, number from 1, table and advice."""
    return {
        "operation": event.op,
        "group": {"axis": event.axis, "ranks": list(event.group), "name": event.group_name},
        "number": event.number + 1 if number is None else number,
        "table": [row for part in parts for row in _rows(part)],
        "advice": advice_for(kind),
    }


def _rows(part: CallPart) -> list[dict[str, Any]]:
    """The part's rows of the table: one for each source line."""
    at_one_line = partition(part.events, lambda event: (event.site, call_name(event)))
    return [table_row(row.ranks, row.event) for row in at_one_line]


def _all_alike(events: Sequence[TraceEvent]) -> bool:
    first = events[0]
    alike = (first.op, first.dtype, first.reduce_op, first.root, first.shapes, first.numel)
    if first.op in _ALL_TO_ALL:
        sizes = {size for event in events for part in event.splits or () for size in part}
        if len(sizes) > 1 or any(event.splits and not all(event.splits) for event in events):
            return False
    return all((e.op, e.dtype, e.reduce_op, e.root, e.shapes, e.numel) == alike for e in events)


def partition(events: Sequence[TraceEvent], key: Callable[[TraceEvent], Hashable | None]) -> list[CallPart]:
    """Events by what ``key`` says, in order of first appearance; those without a key are left out."""
    found: dict[Hashable, list[TraceEvent]] = {}
    for event in sorted(events, key=lambda event: event.rank):
        value = key(event)
        if value is not None:
            found.setdefault(value, []).append(event)
    return [CallPart(tuple(event.rank for event in part), tuple(part)) for part in found.values()]


def _counts(event: TraceEvent) -> Hashable | None:
    """Numbers of elements by tensor, of those tensors whose sizes must agree between ranks."""
    if event.op == "scatter":
        return prod(event.shapes[-1]) if event.shapes else None
    if event.op == "gather":
        return prod(event.shapes[0]) if event.shapes else None
    return tuple(map(prod, event.shapes)) if event.shapes else (event.numel,)


def _shapes(event: TraceEvent) -> Hashable | None:
    if event.op == "scatter":
        return event.shapes[-1] if event.shapes else None
    if event.op == "gather":
        return event.shapes[0] if event.shapes else None
    return event.shapes


def _has_tensors(op: str) -> bool:
    return not only_name_matters(op)


def _sizes_must_agree(op: str) -> bool:
    return op not in _ALL_TO_ALL and not only_name_matters(op)


_ASPECTS: tuple[
    tuple[VerdictKind, str, Callable[[TraceEvent], Hashable | None], Callable[[str], bool]], ...
] = (
    (VerdictKind.OPERATION_MISMATCH, "operation", lambda e: canonical_op(e.op), lambda op: True),
    (VerdictKind.ROOT_MISMATCH, "root", lambda e: e.root, lambda op: True),
    (VerdictKind.REDUCE_OP_MISMATCH, "reduce op", lambda e: e.reduce_op or None, is_reduction),
    (VerdictKind.DTYPE_MISMATCH, "dtype", lambda e: e.dtype or None, _has_tensors),
    (VerdictKind.COUNT_MISMATCH, "element count", _counts, _sizes_must_agree),
    (VerdictKind.SHAPE_MISMATCH, "shape", _shapes, _sizes_must_agree),
)

_SHOWN: dict[str, Callable[[TraceEvent], str]] = {
    "operation": lambda event: call_name(event),
    "root": lambda event: f"root {event.root}",
    "reduce op": lambda event: event.reduce_op,
    "dtype": lambda event: event.dtype,
    "element count": lambda event: f"{event.numel} elements {shape_name(event)}",
    "shape": lambda event: shape_name(event),
}


def _disagreement(
    kind: VerdictKind, word: str, events: Sequence[TraceEvent], parts: Sequence[CallPart]
) -> Finding:
    first = parts[0].event
    ranks, waiting = culprits(parts)
    shown = [f"{named_ranks(p.ranks)} {_SHOWN[word](p.event)} at {site_names(p.events)}" for p in parts[:4]]
    if len(parts) > len(shown):
        shown.append(f"and {len(parts) - len(shown)} ways more")
    op = "" if word == "operation" else f" of {first.op}"
    return Finding(
        kind,
        f"{word}{op} differs in call {first.number + 1} on {group_name(first)}: {', '.join(shown)}",
        ranks,
        waiting,
        details_of(kind, first, parts),
        Severity.WARNING
        if word == "shape" and canonical_op(first.op) in _ONLY_COUNTS_MATTER
        else severity_of(kind),
    )


def _pair_counts(event: TraceEvent) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Elements sent to and expected from each member; None where the event doesn't tell."""
    members = len(event.group)
    if event.op == "all_to_all":
        return event.splits
    row = prod(event.shapes[0][1:]) if event.shapes else 1
    if event.splits is not None and any(event.splits):
        even = (event.numel // (members * row) if row else 0,) * members
        sent, expected = (part or even for part in event.splits)
        return tuple(n * row for n in sent), tuple(n * row for n in expected)
    if not event.shapes:
        return None
    return (event.numel // members,) * members, (event.numel // members,) * members


def _splits_disagreement(events: Sequence[TraceEvent]) -> Finding | None:
    """The first pair of members, in rank order, of which one sends what the other doesn't expect."""
    first = events[0]
    place = {rank: i for i, rank in enumerate(first.group)}
    counts = {}
    for event in sorted(events, key=lambda event: event.rank):
        pair = _pair_counts(event)
        if pair is not None and len(pair[0]) == len(pair[1]) == len(place):
            counts[event.rank] = (pair, event)
    receivers = [(rank, place[rank], pair[1]) for rank, (pair, _) in counts.items()]
    for sender, ((sent, _), _event) in counts.items():
        mine = place[sender]
        for receiver, theirs, expected in receivers:
            if sent[theirs] != expected[mine]:
                return _pair_finding(counts[sender][1], counts[receiver][1], sent[theirs], expected[mine])
    return None


def _pair_finding(sender: TraceEvent, receiver: TraceEvent, sent: int, expected: int) -> Finding:
    kind = VerdictKind.SPLITS_MISMATCH
    ranks = tuple(sorted({sender.rank, receiver.rank}))
    parts = [CallPart((sender.rank,), (sender,))]
    if receiver.rank != sender.rank:
        parts.append(CallPart((receiver.rank,), (receiver,)))
    return Finding(
        kind,
        f"splits of {sender.op} differ in call {sender.number + 1} on {group_name(sender)}: "
        f"rank {sender.rank} sends {sent} {verb([0] * sent, 'element', 'elements')} to rank {receiver.rank} "
        f"at {site_name(sender.site)}, rank {receiver.rank} expects {expected} at {site_name(receiver.site)}",
        ranks,
        tuple(rank for rank in sender.group if rank not in ranks),
        details_of(kind, sender, parts),
        severity_of(kind),
    )
