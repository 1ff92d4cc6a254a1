"""What a run that got through did that another backend, or another day, won't forgive."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshsim.checker.capabilities import unsupported
from meshsim.checker.compare import (
    NON_MEMBER,
    RECV_OPS,
    SEND_OPS,
    CallPart,
    compare_group_creation,
    details_of,
)
from meshsim.checker.kinds import severity_of
from meshsim.checker.replay import Replay, op_number
from meshsim.checker.wording import group_name, named_ranks, site_name
from meshsim.trace import CallState, TraceEvent
from meshsim.verdict import Finding, Severity, VerdictKind


def created_by_members_only(calls: Replay, world: Collection[int]) -> list[Finding]:
    """Groups that not every rank of the world took part in creating. For runs where all ranks returned."""
    found = (
        compare_group_creation(events, world, number=number) for number, events in enumerate(calls.creations)
    )
    return [finding for finding in found if finding is not None]


def calls_by_non_members(traces: Sequence[Sequence[TraceEvent]]) -> list[Finding]:
    """Calls on groups that the rank isn't in, one finding for each line."""
    lines: dict[object, list[TraceEvent]] = {}
    for trace in traces:
        for event in trace:
            if event.note and NON_MEMBER in event.note:
                lines.setdefault((event.op, event.site), []).append(event)
    kind = VerdictKind.NON_MEMBER_CALL
    findings = []
    for events in lines.values():
        event, ranks = events[0], tuple(sorted({event.rank for event in events}))
        on = f" on {group_name(event)}" if event.group else ""
        summary = (
            f"{named_ranks(ranks)} called {event.op}{on} without being in the group, "
            f"at {site_name(event.site)}: the call did nothing"
        )
        details = details_of(kind, event, [CallPart(ranks, tuple(events))])
        findings.append(Finding(kind, summary, ranks, (), details, severity_of(kind)))
    return findings


def calls_without_partner(calls: Replay) -> list[Finding]:
    """Sends that nobody received, receives to which nobody sent. For runs where all ranks returned."""
    if not calls.complete:
        return []
    findings = []
    for channel in dict.fromkeys((*calls.sends, *calls.recvs)):
        sends, recvs = calls.sends.get(channel, []), calls.recvs.get(channel, [])
        group, _, destination, tag = channel
        if (group, destination, tag) in calls.open_recvs:
            continue
        left = [e for e in (sends[len(recvs) :] or recvs[len(sends) :]) if e.state is not CallState.FAILED]
        if left and not left[0].internal:
            findings.append(_without_partner(calls, left[0]))
    for waiting in calls.open_recvs.values():
        findings.extend(_without_partner(calls, event) for event in waiting[:1])
    return findings


def _without_partner(calls: Replay, event: TraceEvent) -> Finding:
    sends = event.op in SEND_OPS
    kind = VerdictKind.UNMATCHED_SEND if sends else VerdictKind.UNMATCHED_RECV
    number = op_number(calls.traces[event.rank], event)
    peer = "any rank" if event.peer is None else f"rank {event.peer}"
    way = "to" if sends else "from"
    summary = (
        f"nobody {'receives it' if sends else 'sends'}: {event.op} number {number} of rank {event.rank} "
        f"{way} {peer} on {group_name(event)} at {site_name(event.site)}; all ranks returned"
    )
    culprits = (event.rank,) if event.peer is None else (event.peer,)
    waiting = tuple(rank for rank in (event.rank,) if rank not in culprits)
    details = details_of(kind, event, [CallPart((event.rank,), (event,))], number=number)
    return Finding(kind, summary, culprits, waiting, details, severity_of(kind))


def lacking_on(backend: str, traces: Sequence[Sequence[TraceEvent]]) -> list[Finding]:
    """Calls that a backend doesn't have, the first of each rank, ranks with the same one together."""
    found: dict[tuple[object, str], list[TraceEvent]] = {}
    known: dict[object, str | None] = {}
    for trace in traces:
        for event in trace:
            if event.internal or event.state is CallState.FAILED:
                continue
            key = (event.op, event.dtype, event.reduce_op, event.op in RECV_OPS and event.peer is None)
            if event.op not in SEND_OPS and not (event.shapes and () in event.shapes):
                if key not in known:
                    known[key] = unsupported(event, backend)
                reason = known[key]
            else:
                reason = unsupported(event, backend)
            if reason is not None:
                found.setdefault((event.site, reason), []).append(event)
                break
    kind = VerdictKind.UNSUPPORTED
    findings = []
    for (_, reason), events in found.items():
        ranks = tuple(event.rank for event in events)
        details = details_of(kind, events[0], [CallPart(ranks, tuple(events))]) | {"reason": reason}
        summary = f"{reason} ({named_ranks(ranks)} at {site_name(events[0].site)})"
        findings.append(Finding(kind, summary, ranks, (), details, severity_of(kind)))
    return findings


def tags_out_of_order(calls: Replay, backend: str) -> list[Finding]:
    """Sends and receives between two ranks whose tags come in different orders, where tags are ignored."""
    if backend not in ("nccl", "hccl") or not calls.complete:
        return []
    ends: dict[tuple[int, int, int], tuple[list[TraceEvent], list[TraceEvent]]] = {}
    for side, channels in enumerate((calls.sends, calls.recvs)):
        for (group, source, destination, _), events in channels.items():
            ends.setdefault((group, source, destination), ([], []))[side].extend(events)
    kind = VerdictKind.P2P_TAG_MISMATCH
    findings = []
    for (_, source, destination), (sends, recvs) in ends.items():
        sends.sort(key=lambda event: event.index)
        recvs.sort(key=lambda event: event.index)
        pair = next(((s, r) for s, r in zip(sends, recvs, strict=False) if s.tag != r.tag), None)
        if pair is None:
            continue
        send, recv = pair
        summary = (
            f"tags out of order: rank {source} sends tag {send.tag} to rank {destination} at "
            f"{site_name(send.site)} while rank {destination} receives tag {recv.tag} at "
            f"{site_name(recv.site)}; {backend} ignores tags and goes by order"
        )
        parts = [CallPart((source,), (send,)), CallPart((destination,), (recv,))]
        ranks = tuple(sorted((source, destination)))
        findings.append(Finding(kind, summary, ranks, (), details_of(kind, send, parts), Severity.HAZARD))
    return findings
