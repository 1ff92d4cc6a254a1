"""Faults that a run was to have, and that never came to their call: the run says nothing about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshsim.checker.kinds import advice_for
from meshsim.checker.wording import named_ranks, rank_ranges, verb
from meshsim.faults import DAMAGING, Fault, fired_fault
from meshsim.trace import TraceEvent
from meshsim.verdict import Finding, Severity, VerdictKind

if TYPE_CHECKING:
    from meshlib import MeshPlan

_OPS_SHOWN = 4


def never_fired(
    faults: Sequence[Fault], plan: MeshPlan, traces: Sequence[Sequence[TraceEvent]]
) -> list[Finding]:
    """A warning for each fault that some rank it addresses never came to, with the calls there were."""
    fired = {(rank, fired_fault(event)) for rank, trace in enumerate(traces) for event in trace if event.note}
    findings = []
    for fault in dict.fromkeys(faults):
        idle = [
            rank
            for rank in range(len(traces))
            if (rank, fault) not in fired and fault.matches_rank(rank, plan)
        ]
        if idle:
            findings.append(_finding(fault, idle, traces))
    return findings


def _finding(fault: Fault, ranks: Sequence[int], traces: Sequence[Sequence[TraceEvent]]) -> Finding:
    matching = {rank: sum(map(fault.matches_call, traces[rank])) for rank in ranks}
    by_count: dict[int, list[int]] = {}
    for rank, count in matching.items():
        by_count.setdefault(count, []).append(rank)
    op = "communication" if fault.op == "*" else fault.op
    told = [
        f"{named_ranks(same)} made {count or 'no'} {op} {verb([0] * (count or 2), 'call', 'calls')}"
        for count, same in list(by_count.items())[:3]
    ]
    if len(by_count) > 3:
        told.append("and others yet other numbers")
    details: dict[str, Any] = {
        "fault": str(fault),
        "matching": [{"ranks": rank_ranges(same), "calls": count} for count, same in by_count.items()],
        "advice": advice_for(VerdictKind.FAULT_NOT_FIRED),
    }
    summary = f"fault {fault} never fired on {named_ranks(ranks)}: {', '.join(told)}"
    if fault.action in DAMAGING and any(count >= (fault.count or 1) for count in matching.values()):
        summary += f", none of them one at which {fault.action} has a tensor to damage"
    else:
        summary += _other_calls(fault, [traces[rank] for rank in ranks])
    return Finding(
        VerdictKind.FAULT_NOT_FIRED, summary, tuple(ranks), details=details, severity=Severity.WARNING
    )


def _other_calls(fault: Fault, traces: Sequence[Sequence[TraceEvent]]) -> str:
    """What the ranks called instead, where the operation's name doesn't occur at all."""
    calls = [event for trace in traces for event in trace if not event.internal]
    if fault.op == "*" or any(map(fault.matches_call, calls)):
        return ""
    ops = Counter(event.op for event in calls).most_common(_OPS_SHOWN)
    return f"; they called {', '.join(op for op, _ in ops)}" if ops else "; they called nothing"
