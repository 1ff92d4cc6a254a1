"""How ranks ended: on their own, as a consequence of another's end, or not at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from meshsim.checker.capabilities import unsupported
from meshsim.checker.deadlock import last_call, stack_line
from meshsim.checker.kinds import advice_for, severity_of
from meshsim.checker.wording import member_list, named_ranks, rank_ranges, site_name, table_row
from meshsim.report import RankFailure, RankReport, RankState
from meshsim.trace import CallState
from meshsim.verdict import Finding, VerdictKind

_TAIL_LINES = 20
_KIND_OF_STATE = {
    RankState.RAISED: VerdictKind.RAISED,
    RankState.EXITED: VerdictKind.EXITED,
    RankState.KILLED: VerdictKind.KILLED,
}
_KIND_OF_ERROR = {
    "UnsupportedCall": VerdictKind.UNSUPPORTED,
    "PlanDisagreement": VerdictKind.PLAN_MISMATCH,
}
"""Errors of meshlib and meshsim that are one of the kinds."""
# c10d's own words (torch 2.13) for a rank that isn't in the group of the call.
_NOT_IN_GROUP = re.compile(
    r"(Global|Group) rank (-?\d+) is not part of group(?:.*?ranks \[([\d, ]*)\])?", re.DOTALL
)


def ended_on_their_own(ranks: Sequence[RankReport], backend: str) -> Finding | None:
    """The ranks that raised, exited or were killed, not as a consequence; the earliest heads."""
    ended = [report for report in ranks if report.state in _KIND_OF_STATE]
    causes = _causes(ended)
    if not causes:
        return None
    first = min(causes, key=lambda report: (report.ended, report.rank))
    kind = _KIND_OF_STATE[first.state]
    found = _carried_finding(causes)
    if found is not None:
        return found
    alike = [report for report in causes if _what_happened(report) == _what_happened(first)]
    texts = [_told(alike)]
    rest = [report for report in causes if report not in alike]
    texts += [_told([report]) for report in rest[:2]]
    if len(rest) > 2:
        texts.append(f"{named_ranks(report.rank for report in rest[2:])} failed, too")
    culprits = tuple(sorted(report.rank for report in causes))
    folded = tuple(report.rank for report in ended if report not in causes)
    details: dict[str, Any] = {"advice": advice_for(kind)}
    kind, details = _more_exactly(kind, first, backend, details)
    if first.state is RankState.KILLED:
        details |= {"signal": first.signal, "stderr": tail(first.stderr), "stack": first.stack}
    if "reason" in details:
        texts[0] += f": {details['reason']}"
    waiting = tuple(rank for rank in folded if rank not in culprits)
    return Finding(kind, "; ".join(texts), culprits, waiting, details, severity_of(kind))


def _causes(ended: Sequence[RankReport]) -> list[RankReport]:
    """Without those whose error came out of communication, unless there are no others."""
    outside = [report for report in ended if not _came_out_of_communication(report)]
    if outside:
        return outside
    return [report for report in ended if report.failure is None or not report.failure.peer_lost]


def _came_out_of_communication(report: RankReport) -> bool:
    if report.failure is None or report.state is not RankState.RAISED:
        return False
    if report.failure.peer_lost:
        return True
    last = report.trace[-1] if report.trace else None
    return (
        last is not None
        and last.state is CallState.FAILED
        and report.failure.type in ("RuntimeError", "torch.distributed.DistNetworkError")
        and not last.note
        and unsupported(last, "gloo") is None
    )


def _carried_finding(causes: Sequence[RankReport]) -> Finding | None:
    """The finding that an exception of meshsim's own carries (``ctx.check`` and its like)."""
    carried: dict[str, Finding] = {}
    for report in causes:
        found = report.failure.carried if report.failure is not None else None
        if isinstance(found, Finding):
            carried.setdefault(found.summary, found)
    if not carried:
        return None
    first = next(iter(carried.values()))
    alike = [finding for finding in carried.values() if finding.kind is first.kind]
    summary = "; ".join(finding.summary for finding in alike[:3])
    if len(alike) > 3:
        summary += f"; and in {len(alike) - 3} more groups"
    ranks = {rank for finding in alike for rank in finding.ranks}
    waiting = tuple(report.rank for report in causes if report.rank not in ranks)
    return Finding(first.kind, summary, tuple(sorted(ranks)), waiting, first.details, first.severity)


def _what_happened(report: RankReport) -> tuple[object, ...]:
    failure = report.failure
    if report.state is RankState.RAISED and failure is not None:
        return (report.state, failure.type, _first_line(failure), failure.site)
    return (report.state, report.exit_code, report.signal)


def _told(reports: Sequence[RankReport]) -> str:
    who, report = named_ranks(report.rank for report in reports), reports[0]
    if report.state is RankState.RAISED:
        failure = report.failure
        if failure is None:
            return f"{who} raised an exception"
        line = _first_line(failure)
        where = f" at {site_name(failure.site)}" if failure.site is not None else ""
        return f"{who} raised {failure.type}{where}" + (f": {line}" if line else "")
    if report.state is RankState.KILLED:
        was = "was" if len(reports) == 1 else "were"
        return f"{who} {was} killed" + (f" by {report.signal}" if report.signal else "")
    code = f" with code {report.exit_code}" if report.exit_code is not None else ""
    site = report.failure.site if report.failure is not None else None
    where = f" at {site_name(site)}" if site is not None else ""
    return f"{who} exited{code}{where} without handing in a result"


def handled_text(report: RankReport) -> str:
    """What a rank was handling when the run ended in one of its calls."""
    failure = report.failure
    if failure is None:
        return f"rank {report.rank} was handling nothing"
    where = f" of {site_name(failure.site)}" if failure.site is not None else ""
    return f"rank {report.rank} was handling {failure.type}{where}: {_first_line(failure)}"


def _first_line(failure: RankFailure) -> str:
    lines = failure.message.strip().splitlines()
    return lines[0] if lines else ""


def _more_exactly(
    kind: VerdictKind, report: RankReport, backend: str, details: dict[str, Any]
) -> tuple[VerdictKind, dict[str, Any]]:
    """A raised error that is one of the other kinds."""
    if kind is not VerdictKind.RAISED or report.failure is None:
        return kind, details
    named = _KIND_OF_ERROR.get(report.failure.type.rpartition(".")[2])
    if named is not None:
        return named, {"advice": advice_for(named)}
    rank_kind = _NOT_IN_GROUP.search(report.failure.message)
    if rank_kind is not None:
        kind = VerdictKind.WRONG_RANK_KIND
        return kind, {"advice": advice_for(kind), **_rank_in_group(*rank_kind.groups())}
    last = last_call(report)
    if last is not None and last.state is CallState.FAILED and last.site == report.failure.site:
        reason = unsupported(last, "gloo") or (
            unsupported(last, backend) if backend in ("nccl", "hccl") else None
        )
        if reason is not None:
            kind = VerdictKind.UNSUPPORTED
            return kind, {
                "advice": advice_for(kind),
                "table": [table_row((report.rank,), last)],
                **({"reason": reason} if reason not in report.failure.message else {}),
            }
    return kind, details


def _rank_in_group(which: str, rank: str, members: str | None) -> dict[str, Any]:
    """What the rank would be if it was meant the other way."""
    if not members:
        return {}
    group = [int(member) for member in members.split(",")]
    number = int(rank)
    told: dict[str, Any] = {"members": group}
    if which == "Global" and 0 <= number < len(group):
        told["reason"] = (
            f"the members are {member_list(group)}; rank {number} in the group is global rank {group[number]}"
            f" (group_src={number} or group_dst={number})"
        )
    elif which == "Group" and number in group:
        told["reason"] = (
            f"the members are {member_list(group)}; global rank {number} is rank {group.index(number)} there"
        )
    else:
        told["reason"] = f"the members are {member_list(group)}"
    return told


def failures_table(ranks: Sequence[RankReport], culprits: Sequence[int]) -> list[dict[str, Any]]:
    """Each different failure once, the culprits' first; those that only lost a peer are one row."""
    odd = set(culprits)
    rows: dict[object, dict[str, Any]] = {}
    members: dict[object, list[int]] = {}
    ordered = sorted(ranks, key=lambda report: (report.rank not in odd, report.ended, report.rank))
    for report in ordered:
        failure = report.failure
        if failure is None:
            continue
        folded = failure.peer_lost and report.rank not in odd
        key = "peer lost" if folded else _what_happened(report)
        members.setdefault(key, []).append(report.rank)
        rows.setdefault(
            key,
            {
                "type": failure.type,
                "message": failure.message,
                "site": str(failure.site) if failure.site is not None else None,
                "traceback": "" if folded else failure.traceback,
                "peer_lost": folded,
            },
        )
    table = [
        {"ranks": rank_ranges(members[key]), "count": len(members[key]), **row} for key, row in rows.items()
    ]
    return sorted(table, key=lambda row: bool(row["peer_lost"]))


def stuck_or_late(ranks: Sequence[RankReport], deadline: float | None) -> Finding | None:
    """Ranks outside of communication at the deadline, or that the deadline passed and nothing more."""
    stuck = [report for report in ranks if report.state is RankState.STUCK]
    if not stuck and deadline is None:
        return None
    limit = f" when the deadline of {deadline:g} s passed" if deadline is not None else ""
    waiting = tuple(report.rank for report in ranks if report.state is RankState.BLOCKED)
    if not stuck:
        kind = VerdictKind.TIMEOUT
        open_ranks = [report.rank for report in ranks if report.state is not RankState.RETURNED]
        summary = f"{named_ranks(open_ranks)} had not finished{limit}"
        return Finding(kind, summary, tuple(open_ranks), (), {"advice": advice_for(kind)}, severity_of(kind))
    kind = VerdictKind.STUCK
    lines: dict[str | None, list[int]] = {}
    for report in stuck:
        lines.setdefault(stack_line(report), []).append(report.rank)
    places = "; ".join(
        f"{named_ranks(members)}{f' at {line}' if line else ''}" for line, members in list(lines.items())[:4]
    )
    details: dict[str, Any] = {
        "advice": advice_for(kind),
        "stacks": [{"ranks": rank_ranges(m), "stack": _stack_of(stuck, m[0])} for m in lines.values()],
    }
    summary = f"stuck outside of communication{limit}: {places}"
    culprits = tuple(report.rank for report in stuck)
    return Finding(kind, summary, culprits, waiting, details, severity_of(kind))


def _stack_of(stuck: Sequence[RankReport], rank: int) -> str:
    return next(report.stack for report in stuck if report.rank == rank)


def unfinished(ranks: Sequence[RankReport]) -> Finding | None:
    """Ranks that didn't hand in a result, whatever else is known: a run passes only when all return."""
    states: dict[RankState, list[int]] = {}
    for report in ranks:
        if report.state is not RankState.RETURNED:
            states.setdefault(report.state, []).append(report.rank)
    if not states:
        return None
    told = "; ".join(f"{named_ranks(members)}: {state.value}" for state, members in states.items())
    raised = [report for report in ranks if report.state is RankState.RAISED]
    if raised:
        kind = VerdictKind.RAISED
        first = min(raised, key=lambda report: (report.ended, report.rank))
        summary, culprits = _told([first]), tuple(report.rank for report in raised)
    else:
        kind = VerdictKind.TIMEOUT
        summary = f"no result from every rank: {told}"
        culprits = tuple(sorted(rank for members in states.values() for rank in members))
    return Finding(kind, summary, culprits, (), {"advice": advice_for(kind)}, severity_of(kind))


def tail(text: str, lines: int = _TAIL_LINES) -> str:
    """The last lines of a rank's output."""
    return "\n".join(text.splitlines()[-lines:])
