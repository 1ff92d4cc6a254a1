"""Why ranks wait: who misses which call, and who waits for whom in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshsim.checker.certain import first_mismatch
from meshsim.checker.compare import (
    BARRIERS,
    P2P_OPS,
    RECV_OPS,
    SEND_OPS,
    CallPart,
    canonical_op,
    details_of,
    is_store_wait,
    partition,
)
from meshsim.checker.kinds import advice_for, severity_of
from meshsim.checker.replay import Replay, Slot, op_number, replay
from meshsim.checker.wording import (
    group_name,
    named_ranks,
    rank_ranges,
    site_name,
    site_names,
    table_row,
    verb,
)
from meshsim.report import RankReport, RankState
from meshsim.trace import CallState, SourceLine, TraceEvent
from meshsim.verdict import Finding, VerdictKind

if TYPE_CHECKING:
    from meshlib import MeshPlan

_DIED = (RankState.KILLED, RankState.EXITED)
_ENDED = (RankState.RETURNED, RankState.RAISED, *_DIED)
_SHOWN_OF_CYCLE = 8
WAITS = frozenset(
    {
        VerdictKind.DEADLOCK,
        VerdictKind.EXTRA_CALL,
        VerdictKind.GROUP_ORDER_CYCLE,
        VerdictKind.HOST_SYNC_CYCLE,
        VerdictKind.SEND_RECV_CYCLE,
        VerdictKind.UNMATCHED_SEND,
        VerdictKind.UNMATCHED_RECV,
        VerdictKind.STUCK,
        VerdictKind.TIMEOUT,
    }
)
"""Kinds that say why ranks wait: they give way to whatever ended another rank."""


@dataclass
class Waits:
    """Which call each rank waits in, and which ranks that call lacks."""

    calls: Replay
    reports: dict[int, RankReport]
    pending: dict[int, TraceEvent]
    needs: dict[int, list[int]]
    """Of each waiting rank, the ranks whose call is missing; empty when its partners have come."""
    told: frozenset[int] = frozenset()
    """Ranks whose end has been told already."""

    def ended(self, rank: int) -> bool:
        """Whether the rank will make no more calls."""
        report = self.reports.get(rank)
        return report is not None and rank not in self.pending and report.state in _ENDED

    def out_of_reach(self, rank: int) -> bool:
        """Whether the rank has ended or does something else than communicate."""
        return rank not in self.pending


def waits_of(reports: Sequence[RankReport], calls: Replay | None = None) -> Waits:
    """The wait-for relation of all ranks at the end of a run, or at one moment of it."""
    calls = calls or replay([report.trace for report in reports])
    pending = {}
    for report in reports:
        event = waiting_call(report)
        if event is not None:
            pending[report.rank] = event
    missing: dict[Slot, list[int]] = {}
    needs = {rank: _needs(calls, event, missing) for rank, event in pending.items()}
    return Waits(calls, {report.rank: report for report in reports}, pending, needs)


def waiting_call(report: RankReport) -> TraceEvent | None:
    """The call that a rank waits in, or waited in when the loss of its peer ended it; None if in none."""
    if report.state is RankState.STUCK:
        return None
    if report.failure is not None:
        last = report.trace[-1] if report.trace else None
        lost = report.failure.peer_lost and last is not None and last.state is not CallState.COMPLETED
        return last if lost else None
    if report.state in _ENDED:
        return None
    if report.pending is not None:
        # A report may have travelled between processes, and its pending call is then a copy of the trace's.
        index = report.pending.index - (report.trace[0].index if report.trace else 0)
        if 0 <= index < len(report.trace) and report.trace[index].op == report.pending.op:
            return report.trace[index]
    return report.pending


def _needs(calls: Replay, event: TraceEvent, missing: dict[Slot, list[int]]) -> list[int]:
    if event.op in P2P_OPS:
        if event.peer is None:
            return _all_but(event)
        return [] if calls.partner_has_come(event) else [event.peer]
    if is_store_wait(event):
        return _all_but(event)
    slot = calls.slot_of.get(id(event))
    if slot is None:
        return []
    if slot not in missing:
        missing[slot] = calls.missing(slot)
    return missing[slot]


def _all_but(event: TraceEvent) -> list[int]:
    return [rank for rank in event.group if rank != event.rank]


def explain_deadlock(plan: MeshPlan | None, reports: Sequence[RankReport]) -> Finding:
    """Why no rank can go on: a disagreement, a call that a rank never made, or a cycle; the first that holds.

    ``reports`` hold every rank's state, trace and pending call. Takes time linear in the events.
    """
    waits = waits_of(reports)
    return (
        first_mismatch(waits.calls)
        or _different_tags(waits)
        or _missing_call(waits)
        or _cycle(waits)
        or _unexplained(waits)
    )


def deadlock_is_certain(plan: MeshPlan | None, reports: Sequence[RankReport]) -> Finding | None:
    """A missing call or a cycle that nothing can mend any more, judged while ranks still run; else None.

    A rank that runs has no pending call and a state that isn't an end. The reports may be of different
    moments: a rank that waits for a call can't have moved before the report of the rank that hasn't made it.
    """
    waits = waits_of(reports)
    settled = {
        rank: needs
        for rank, needs in waits.needs.items()
        if needs and not _anybody_may_help(waits.pending[rank])
    }
    lists = {id(needs): needs for needs in settled.values()}
    ended = {key: [rank for rank in needs if waits.ended(rank)] for key, needs in lists.items()}
    waits.needs = {rank: ended[id(needs)] or needs for rank, needs in settled.items()}
    return _different_tags(waits) or _missing_call(waits, only_ended=True) or _cycle(waits)


def _anybody_may_help(event: TraceEvent) -> bool:
    return is_store_wait(event) or (event.op in RECV_OPS and event.peer is None)


def explain_missing(waits: Waits, ended: Sequence[int]) -> Finding | None:
    """The call that ranks wait in because some of ``ended`` never made it; None if nobody waits for them."""
    gone = set(ended)
    for rank, needs in waits.needs.items():
        if gone.intersection(needs):
            return _missing_finding(replace(waits, told=frozenset(gone)), rank, gone.__contains__)
    return None


# A call that a rank never made


def _missing_call(waits: Waits, *, only_ended: bool = False) -> Finding | None:
    best: tuple[tuple[bool, int, int], int] | None = None
    gone = waits.ended if only_ended else waits.out_of_reach
    checked: dict[int, tuple[bool, int] | None] = {}
    for rank, needs in waits.needs.items():
        # Members of one slot share one list of missing ranks.
        if id(needs) not in checked:
            absent = [other for other in needs if gone(other)]
            checked[id(needs)] = (len(absent) < len(needs), _urgency(waits, absent)) if absent else None
        found = checked[id(needs)]
        if found is not None and (best is None or (*found, rank) < best[0]):
            best = ((*found, rank), rank)
    return None if best is None else _missing_finding(waits, best[1], gone)


def _urgency(waits: Waits, absent: Sequence[int]) -> int:
    """0 where a rank of these died or raised, 1 where one is stuck, 2 where all returned."""
    states = {waits.reports[rank].state for rank in absent if rank in waits.reports}
    if states & {RankState.RAISED, *_DIED}:
        return 0
    return 2 if states <= {RankState.RETURNED} else 1


def _missing_finding(waits: Waits, rank: int, gone: Any) -> Finding:
    event = waits.pending[rank]
    missing = [other for other in waits.needs[rank] if gone(other)]
    if event.op in P2P_OPS:
        return _unmatched(waits, event, missing)
    if is_store_wait(event):
        return _never_set(waits, event, missing)
    return missing_at(waits, event, missing)


def missing_at(waits: Waits, event: TraceEvent, missing: Sequence[int]) -> Finding:
    """The finding for a collective that some ranks wait in and ``missing`` never made."""
    slot = waits.calls.slot_of.get(id(event))
    arrived = list(waits.calls.slots[slot]) if slot is not None else [event]
    here = tuple(sorted(other.rank for other in arrived))
    parts = [CallPart(here, tuple(sorted(arrived, key=lambda other: other.rank)))]
    number = op_number(_trace(waits, event.rank), event)
    details = details_of(VerdictKind.DEADLOCK, event, parts, number=number)
    details |= {
        "missing": list(missing),
        "missing_table": _states_table(waits, missing),
        **_where_lines_part(waits, slot, missing),
    }
    returned = all(
        other in waits.reports and waits.reports[other].state is RankState.RETURNED for other in missing
    )
    absent = describe_states(waits, missing)
    if returned and len(missing) > len(here) and len(event.group) > 2:
        kind = VerdictKind.EXTRA_CALL
        summary = (
            f"only {named_ranks(here)} called {event.op} number {number} on {group_name(event)}, "
            f"at {site_names(arrived)}: {absent}"
        )
        return Finding(kind, summary, here, (), {**details, "advice": advice_for(kind)}, severity_of(kind))
    lives = any(not waits.ended(other) and other not in waits.pending for other in missing)
    kind = VerdictKind.STUCK if lives else VerdictKind.DEADLOCK
    details["advice"] = advice_for(kind)
    sites = site_names(arrived)
    if event.op in BARRIERS:
        summary = (
            f"{event.op} number {number}: arrived {rank_ranges(here)}; missing {rank_ranges(missing)}, "
            f"on {group_name(event)} at {sites}; {absent}"
        )
    else:
        summary = (
            f"{named_ranks(missing)} never called {event.op} number {number} on {group_name(event)}: "
            f"{named_ranks(here)} {verb(here, 'waits', 'wait')} at {sites}; {absent}"
        )
    summary += details.pop("parting", "")
    culprits = _not_merely_stopped(waits, missing)
    return Finding(kind, summary, culprits, _others_waiting(waits, culprits), details, severity_of(kind))


def _not_merely_stopped(waits: Waits, missing: Sequence[int]) -> tuple[int, ...]:
    """The missing ranks, without those that the end of the run kept from coming."""
    reports = (waits.reports.get(rank) for rank in missing)
    stopped = {report.rank for report in reports if report and report.state is RankState.STOPPED}
    return tuple(rank for rank in sorted(missing) if rank not in stopped) or tuple(sorted(missing))


def _never_set(waits: Waits, event: TraceEvent, missing: Sequence[int]) -> Finding:
    lives = any(not waits.ended(other) for other in missing)
    kind = VerdictKind.STUCK if lives else VerdictKind.DEADLOCK
    site = site_name(event.site) if event.site is not None else stack_line(waits.reports[event.rank])
    key = f" ({event.note})" if event.note else ""
    summary = (
        f"rank {event.rank} waits in {event.op} at {site or 'an unknown line'}{key}; "
        f"{describe_states(waits, missing)}"
    )
    culprits = _not_merely_stopped(waits, missing)
    details = {
        "table": [table_row((event.rank,), event)],
        "missing": list(missing),
        "missing_table": _states_table(waits, missing),
        "advice": advice_for(kind),
    }
    return Finding(kind, summary, culprits, _others_waiting(waits, culprits), details, severity_of(kind))


def _unmatched(waits: Waits, event: TraceEvent, missing: Sequence[int]) -> Finding:
    sends = event.op in SEND_OPS
    kind = VerdictKind.UNMATCHED_SEND if sends else VerdictKind.UNMATCHED_RECV
    number = op_number(_trace(waits, event.rank), event)
    peer = "any rank" if event.peer is None else f"rank {event.peer}"
    what = f"{event.op} number {number} of rank {event.rank} {'to' if sends else 'from'} {peer}"
    other = "receives it" if sends else "sends"
    tag = f" with tag {event.tag}" if event.tag else ""
    summary = (
        f"nobody {other}: {what}{tag} on {group_name(event)} waits at {site_name(event.site)}; "
        f"{describe_states(waits, missing)}"
    )
    details = details_of(kind, event, [CallPart((event.rank,), (event,))], number=number)
    details |= {"missing": list(missing), "missing_table": _states_table(waits, missing)}
    culprits = tuple(sorted(missing))
    return Finding(kind, summary, culprits, _others_waiting(waits, culprits), details, severity_of(kind))


def describe_states(waits: Waits, ranks: Sequence[int]) -> str:
    """What became of ranks: ``rank 1 returned, last call all_reduce number 2 on tp (0, 1) at a.py:5``."""
    told: dict[str, list[int]] = {}
    for rank in ranks:
        told.setdefault(_state_text(waits, rank), []).append(rank)
    texts = [f"{named_ranks(same)} {text}" for text, same in list(told.items())[:3]]
    if len(told) > 3:
        texts.append(f"{named_ranks(rank for same in list(told.values())[3:] for rank in same)} likewise")
    return "; ".join(texts)


def _state_text(waits: Waits, rank: int) -> str:
    report = waits.reports.get(rank)
    if report is None:
        return "isn't part of this run"
    text = _ending(waits, report)
    last = last_call(report)
    if rank in waits.pending:
        return text
    if last is None:
        return "had made no call before" if rank in waits.told else f"{text}, without any call before"
    number = op_number(report.trace, last)
    call = f"last call {last.op} number {number} on {group_name(last)} at {site_name(last.site)}"
    return f"had as its {call}" if rank in waits.told else f"{text}, {call}"


def _ending(waits: Waits, report: RankReport) -> str:
    if report.rank in waits.pending:
        event = waits.pending[report.rank]
        number = op_number(report.trace, event)
        return f"waits in {event.op} number {number} on {group_name(event)} at {site_name(event.site)}"
    if report.state is RankState.RETURNED:
        return "returned"
    if report.state is RankState.RAISED:
        kind = report.failure.type if report.failure is not None else "an exception"
        site = report.failure.site if report.failure is not None else None
        return f"raised {kind}" + (f" at {site_name(site)}" if site is not None else "")
    if report.state is RankState.EXITED:
        return "exited" + (f" with code {report.exit_code}" if report.exit_code is not None else "")
    if report.state is RankState.KILLED:
        return f"was killed{f' by {report.signal}' if report.signal else ''}"
    if report.state is RankState.NOT_STARTED:
        return "never started"
    if report.state is RankState.STOPPED:
        return "was stopped before it came so far"
    where = stack_line(report)
    return "lives, outside of communication" + (f" at {where}" if where else "")


def stack_line(report: RankReport) -> str | None:
    """The innermost line of the stack of a rank that had not finished: ``train.py:12``."""
    from meshsim.source import is_user_file

    lines = [line.strip() for line in report.stack.splitlines() if line.strip().startswith("File ")]
    found = None
    for line in lines:
        pieces = line.split('"')
        if len(pieces) < 3 or ", line " not in pieces[2]:
            continue
        number = pieces[2].split(", line ")[1].split(",")[0].strip()
        if number.isdigit() and is_user_file(pieces[1]):
            found = site_name(SourceLine(pieces[1], int(number)))
    return found


def last_call(report: RankReport) -> TraceEvent | None:
    """The scenario's last call of a rank."""
    return next((event for event in reversed(report.trace) if not event.internal), None)


def _states_table(waits: Waits, ranks: Iterable[int]) -> list[dict[str, Any]]:
    """One row for ranks in the same state, with their last call."""
    rows: dict[str, dict[str, Any]] = {}
    members: dict[str, list[int]] = {}
    for rank in ranks:
        text = _state_text(waits, rank)
        members.setdefault(text, []).append(rank)
        if text not in rows:
            report = waits.reports.get(rank)
            last = last_call(report) if report is not None else None
            rows[text] = {
                "state": report.state.value if report is not None else "absent",
                "text": text,
                "last_call": table_row((rank,), last) if last is not None else None,
            }
    return [{"ranks": rank_ranges(members[text]), **row} for text, row in rows.items()]


def _where_lines_part(waits: Waits, slot: Slot | None, missing: Sequence[int]) -> dict[str, Any]:
    """The first earlier call on the group that the missing ranks made at another line than all the others.

    A skipped call shifts all later ones by one, and the group only notices at the end of the shorter list.
    """
    if slot is None:
        return {}
    odd = set(missing)
    for place in range(slot[1]):
        events = waits.calls.slots.get((slot[0], place), [])
        theirs = {event.site for event in events if event.rank in odd}
        others = {event.site for event in events if event.rank not in odd}
        if len(theirs) == 1 and len(others) == 1 and theirs != others:
            parts = partition(events, lambda event: event.site)
            shown = ", ".join(f"{named_ranks(p.ranks)} at {site_name(p.event.site)}" for p in parts)
            op = parts[0].event.op
            number = op_number(_trace(waits, parts[0].event.rank), parts[0].event)
            return {
                "lines_part": [table_row(part.ranks, part.event) for part in parts],
                "parting": f"; the lines part at {op} number {number}: {shown}",
            }
    return {}


# Cycles


def _cycle(waits: Waits) -> Finding | None:
    """All cycles of the wait-for relation, the first one drawn."""
    follow = {
        rank: next((other for other in needs if other in waits.pending and waits.needs.get(other)), None)
        for rank, needs in waits.needs.items()
    }
    cycles = [cycle for cycle in _cycles_of(follow) if len(cycle) > 1 or waits.needs.get(cycle[0])]
    if not cycles:
        return None
    first = cycles[0]
    edges = [_edge(waits, rank, follow[rank]) for rank in first]
    skipped = _skipped_by_one(waits, first, follow)
    if skipped is not None:
        skipped.details["cycle"] = edges
        return skipped
    kind, word = _kind_of_cycle([waits.pending[rank] for rank in first])
    same = [c for c in cycles if _kind_of_cycle([waits.pending[rank] for rank in c])[0] is kind]
    ranks = tuple(sorted(rank for cycle in same for rank in cycle))
    drawn = _drawn([*first, first[0]])
    told = ", ".join(edge["text"] for edge in edges[:_SHOWN_OF_CYCLE])
    more = f", and {len(edges) - _SHOWN_OF_CYCLE} more" if len(edges) > _SHOWN_OF_CYCLE else ""
    others = (
        f" ({len(same) - 1} more such {'cycle' if len(same) == 2 else 'cycles'})" if len(same) > 1 else ""
    )
    parts = [CallPart((rank,), (waits.pending[rank],)) for rank in first]
    details = details_of(kind, waits.pending[first[0]], parts)
    details |= {"cycle": edges, "cycle_ranks": [list(cycle) for cycle in same]}
    summary = f"{word} {drawn}: {told}{more}{others}"
    return Finding(kind, summary, ranks, _others_waiting(waits, ranks), details, severity_of(kind))


def _skipped_by_one(waits: Waits, cycle: Sequence[int], follow: dict[int, int | None]) -> Finding | None:
    """The finding for a rank that skipped a call, by the example of the ranks that stand where it stands.

    Rank 0 waits in tp for rank 1, and rank 1 with ranks 2 and 3 in the world's barrier for rank 0. If most of
    those had made as many calls along tp as rank 0 before they came there, rank 1 is the odd one.
    """
    for rank in cycle:
        event, other = waits.pending[rank], follow[rank]
        stands_at = waits.calls.slot_of.get(id(waits.pending[other])) if other is not None else None
        if other is None or stands_at is None or not event.axis or id(event) not in waits.calls.slot_of:
            continue
        peers = [e.rank for e in waits.calls.slots[stands_at] if e.rank not in cycle]
        needed = _calls_along(waits, rank, event.axis)
        made = sum(1 for peer in peers if _calls_along(waits, peer, event.axis) >= needed)
        if 2 * made > len(peers):
            return missing_at(waits, event, [other])
    return None


def _calls_along(waits: Waits, rank: int, axis: str) -> int:
    """How many collectives the rank has made on its groups along an axis."""
    return sum(
        1
        for event in _trace(waits, rank)
        if event.axis == axis and not event.internal and event.op not in P2P_OPS
    )


def _cycles_of(follow: dict[int, int | None]) -> list[list[int]]:
    """The cycles of a graph with at most one edge out of each node, each from its lowest rank."""
    done: set[int] = set()
    cycles = []
    for start in sorted(follow):
        path: list[int] = []
        place: dict[int, int] = {}
        rank: int | None = start
        while rank is not None and rank not in done and rank not in place:
            place[rank] = len(path)
            path.append(rank)
            rank = follow.get(rank)
        if rank is not None and rank in place:
            cycle = path[place[rank] :]
            lowest = cycle.index(min(cycle))
            cycles.append(cycle[lowest:] + cycle[:lowest])
        done.update(path)
    return cycles


def _kind_of_cycle(events: Sequence[TraceEvent]) -> tuple[VerdictKind, str]:
    if all(event.op in P2P_OPS for event in events):
        return VerdictKind.SEND_RECV_CYCLE, "sends and receives wait in a cycle"
    on_host = any(
        event.op in P2P_OPS | BARRIERS or event.async_op or is_store_wait(event) for event in events
    )
    if on_host:
        return VerdictKind.HOST_SYNC_CYCLE, "ranks wait for each other in a cycle"
    if len({(event.group, event.group_name) for event in events}) > 1:
        return VerdictKind.GROUP_ORDER_CYCLE, "groups are used in opposite order, cycle"
    return VerdictKind.DEADLOCK, "ranks wait for each other in a cycle"


def _drawn(ranks: Sequence[int]) -> str:
    if len(ranks) <= _SHOWN_OF_CYCLE + 1:
        return "→".join(map(str, ranks))
    return "→".join([*map(str, ranks[: _SHOWN_OF_CYCLE - 1]), "…", str(ranks[-1])])


def _edge(waits: Waits, rank: int, other: int | None) -> dict[str, Any]:
    event = waits.pending[rank]
    peer = ""
    if event.op in P2P_OPS and event.peer is not None:
        peer = f" {'to' if event.op in SEND_OPS else 'from'} {event.peer}"
    where = "" if event.op in P2P_OPS else f" on {_told_apart(waits, event)}"
    waiting = "wait() of " if event.async_op else ""
    return {
        "rank": rank,
        "waits_for": other,
        "text": f"rank {rank} waits in {waiting}{event.op}{peer}{where} at {site_name(event.site)}",
        "call": table_row((rank,), event),
    }


def _told_apart(waits: Waits, event: TraceEvent) -> str:
    """The group's name; with c10d's own where another rank waits in another group of the same ranks."""
    if len(waits.pending) > _SHOWN_OF_CYCLE:
        return group_name(event)
    alike = (
        other
        for other in waits.pending.values()
        if other.group_name != event.group_name and other.axis == event.axis and other.group == event.group
    )
    return group_name(event) + (f" [c10d group {event.group_name}]" if next(alike, None) is not None else "")


def _different_tags(waits: Waits) -> Finding | None:
    """A send and a receive between the same two ranks that only their tags keep apart."""
    for rank, event in waits.pending.items():
        if event.op not in SEND_OPS or event.peer is None or not waits.needs.get(rank):
            continue
        other = waits.pending.get(event.peer)
        if (
            other is not None
            and other.op in RECV_OPS
            and other.peer == rank
            and other.tag != event.tag
            and other.group == event.group
        ):
            kind = VerdictKind.P2P_TAG_MISMATCH
            ranks = tuple(sorted((rank, event.peer)))
            summary = (
                f"tags differ: rank {rank} sends to rank {event.peer} with tag {event.tag} at "
                f"{site_name(event.site)}, rank {event.peer} receives with tag {other.tag} at "
                f"{site_name(other.site)}"
            )
            parts = [CallPart((rank,), (event,)), CallPart((event.peer,), (other,))]
            details = details_of(kind, event, parts)
            return Finding(kind, summary, ranks, _others_waiting(waits, ranks), details, severity_of(kind))
    return None


def _unexplained(waits: Waits) -> Finding:
    """No rank can go on, and the traces don't say why: what everybody waits in."""
    kind = VerdictKind.DEADLOCK
    blocked = {rank for rank, report in waits.reports.items() if report.state is RankState.BLOCKED}
    ranks = tuple(sorted({*waits.pending, *blocked}))
    summary = "no rank can go on: " + describe_states(waits, ranks)
    parts = partition(
        list(waits.pending.values()), lambda event: (canonical_op(event.op), event.group_name, event.site)
    )
    details = {
        "table": [table_row(part.ranks, part.event) for part in parts],
        "advice": advice_for(kind),
    }
    return Finding(kind, summary, ranks, (), details, severity_of(kind))


def _others_waiting(waits: Waits, culprits: Sequence[int]) -> tuple[int, ...]:
    odd = set(culprits)
    return tuple(rank for rank in sorted(waits.pending) if rank not in odd)


def _trace(waits: Waits, rank: int) -> Sequence[TraceEvent]:
    report = waits.reports.get(rank)
    return report.trace if report is not None else ()
