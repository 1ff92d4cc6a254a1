"""Asynchronous works: those that nobody waited for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshsim.checker.compare import P2P_OPS, CallPart, details_of
from meshsim.checker.kinds import severity_of
from meshsim.checker.replay import op_number
from meshsim.checker.wording import group_name, named_ranks, rank_ranges, site_name
from meshsim.trace import CallState, TraceEvent
from meshsim.verdict import Finding, VerdictKind


def never_waited(trace: Sequence[TraceEvent]) -> list[Finding]:
    """One finding for each line of a rank that left works behind. Call it for ranks that returned."""
    return never_waited_by([trace])


def never_waited_by(traces: Iterable[Sequence[TraceEvent]]) -> list[Finding]:
    """One finding for each line that left as many works behind on some ranks, in the ranks' order."""
    found: dict[tuple[object, ...], list[tuple[TraceEvent, Sequence[TraceEvent], int]]] = {}
    for trace in traces:
        left: dict[object, list[TraceEvent]] = {}
        for event in trace:
            if _was_left(event):
                left.setdefault((event.op, event.axis, event.site), []).append(event)
        for key, events in left.items():
            found.setdefault((key, len(events)), []).append((events[0], trace, len(events)))
    return [_finding(entries) for entries in found.values()]


def _was_left(event: TraceEvent) -> bool:
    deferred = event.async_op or event.op in P2P_OPS
    return deferred and not event.waited and not event.internal and event.state is not CallState.FAILED


def _finding(entries: Sequence[tuple[TraceEvent, Sequence[TraceEvent], int]]) -> Finding:
    kind = VerdictKind.NEVER_WAITED
    event, trace, count = entries[0]
    ranks = tuple(sorted(entry[0].rank for entry in entries))
    where = f"on rank {ranks[0]}" if len(ranks) == 1 else f"on each of {named_ranks(ranks)}"
    groups = {entry[0].group: entry[0] for entry in entries}
    group = group_name(event) if len(groups) == 1 else f"{event.axis or 'groups'} of {rank_ranges(ranks)}"
    number = op_number(trace, event)
    works = "1 work" if count == 1 else f"{count} works"
    parts = [CallPart(ranks, tuple(entry[0] for entry in entries))]
    return Finding(
        kind,
        f"{works} never waited for {where}: {event.op} number {number} on {group} at {site_name(event.site)}",
        ranks,
        (),
        {**details_of(kind, event, parts, number=number), "count": count},
        severity_of(kind),
    )
