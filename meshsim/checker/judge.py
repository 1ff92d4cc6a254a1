"""The verdict on a run: one order of precedence over everything that the ranks and the traces say.

1. What the world itself saw go wrong when calls met, and what the target backend doesn't have.
2. What two ranks provably disagree about, by their traces; look-alike calls swapped.
3. Ranks that ended on their own: raised, exited, killed; the earliest heads. A rank whose error came out of
   communication after another rank's end is a consequence.
4. Ranks that wait: a call that a rank never made, a cycle.
5. The deadline: ranks stuck outside of communication, or nothing that can be told.
6. Anything else than a return on every rank: there is no false pass.
7. Hazards of a run that got through: groups created by members only or used in opposite order, calls without
   partner, works never waited for.

Faults that never fired are warnings, whatever else is found.
The first error or hazard heads; warnings go along. Where an injected fault fired, its rank is the culprit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from meshsim.checker.buffers import merge_alike
from meshsim.checker.certain import first_mismatch, mismatch_warnings
from meshsim.checker.deadlock import WAITS, Waits, explain_deadlock, explain_missing, waits_of
from meshsim.checker.ends import ended_on_their_own, failures_table, handled_text, stuck_or_late, unfinished
from meshsim.checker.hazards import (
    calls_by_non_members,
    calls_without_partner,
    created_by_members_only,
    lacking_on,
    tags_out_of_order,
)
from meshsim.checker.injected import never_fired
from meshsim.checker.kinds import KINDS, severity_of
from meshsim.checker.order import opposite_group_order, swapped_operations
from meshsim.checker.replay import Replay, replay
from meshsim.checker.wording import named_ranks
from meshsim.checker.works import never_waited_by
from meshsim.faults import Fault, fired_fault
from meshsim.report import RankReport, RankState, WorldReport
from meshsim.verdict import Finding, Severity, Verdict, VerdictKind

if TYPE_CHECKING:
    from meshlib import MeshPlan


def judge(
    plan: MeshPlan | None,
    report: WorldReport,
    *,
    backend: str = "gloo",
    profile: str | None = None,
    faults: Sequence[Fault] = (),
) -> Verdict:
    """What came of a run on ``backend`` (``fake``, ``gloo``, ``nccl``, ``hccl``).

    ``profile`` names another backend whose limits count as well, ``faults`` are those that the run was to
    have (with a plan). Pure: reads reports and traces and nothing else, and takes time linear in the events.
    """
    case = _Case(plan, report, backend, profile, tuple(faults))
    head: Finding | None = None
    warnings: list[Finding] = []
    also: list[Finding] = []
    for step in _PRECEDENCE:
        for finding in step(case):
            if case.severity(finding) is Severity.WARNING:
                warnings.append(finding)
            elif head is None:
                head = finding
            elif finding is not head:
                also.append(finding)
        if head is not None:
            break
    if head is None:
        return Verdict(VerdictKind.PASSED, _passed(case), details=case.common_details(), warnings=warnings)
    waits = [finding for finding in report.findings if finding.kind in WAITS and finding is not head]
    also.extend(finding for finding in waits if finding not in also)
    return _verdict(case, head, warnings, also)


@dataclass
class _Case:
    """A run, and what is worked out about it on demand."""

    plan: MeshPlan | None
    report: WorldReport
    backend: str
    profile: str | None
    ordered_faults: tuple[Fault, ...] = ()

    @property
    def ranks(self) -> list[RankReport]:
        return self.report.ranks

    @cached_property
    def calls(self) -> Replay:
        return replay([report.trace for report in self.ranks])

    @cached_property
    def waits(self) -> Waits:
        return waits_of(self.ranks, self.calls)

    @cached_property
    def faults(self) -> list[tuple[int, Fault]]:
        """The faults that fired, with their ranks."""
        fired: list[tuple[int, Fault]] = []
        for report in self.ranks:
            for event in report.trace:
                fault = fired_fault(event) if event.note else None
                if fault is not None and (report.rank, fault) not in fired[-1:]:
                    fired.append((report.rank, fault))
        return fired

    def severity(self, finding: Finding) -> Severity:
        target = self.profile or self.backend
        if finding.severity is Severity.WARNING or target not in ("nccl", "hccl"):
            return finding.severity
        return severity_of(finding.kind, target)

    def common_details(self) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if self.faults:
            details["faults"] = [{"rank": rank, "fault": str(fault)} for rank, fault in self.faults]
        return details


def _never_fired(case: _Case) -> list[Finding]:
    if case.plan is None or not case.ordered_faults:
        return []
    return never_fired(case.ordered_faults, case.plan, [report.trace for report in case.ranks])


def _world_findings(case: _Case) -> list[Finding]:
    return merge_alike([finding for finding in case.report.findings if finding.kind not in WAITS])


def _lacking(case: _Case) -> list[Finding]:
    return lacking_on(case.profile, [report.trace for report in case.ranks]) if case.profile else []


def _mismatch(case: _Case) -> list[Finding]:
    found = first_mismatch(case.calls)
    return [found] if found is not None else []


def _swapped(case: _Case) -> list[Finding]:
    return swapped_operations(case.calls)


def _own_ends(case: _Case) -> list[Finding]:
    found = ended_on_their_own(case.ranks, case.profile or case.backend)
    if found is None:
        return []
    missed = explain_missing(case.waits, found.ranks)
    if missed is not None:
        found.summary = f"{found.summary}; {missed.summary}"
        found.waiting = tuple(sorted({*found.waiting, *missed.waiting} - set(found.ranks)))
        found.details = {**missed.details, **found.details}
    return [found]


def _world_waits(case: _Case) -> list[Finding]:
    return [finding for finding in case.report.findings if finding.kind in WAITS]


def _waiting(case: _Case) -> list[Finding]:
    explained = any(case.waits.needs.values())
    stands_still = case.report.deadline is None and any(r.state is RankState.BLOCKED for r in case.ranks)
    if not explained and not stands_still:
        return []
    found = explain_deadlock(case.plan, case.ranks)
    return [] if case.report.deadline is not None and _were_only_slow(case, found) else [found]


def _were_only_slow(case: _Case, finding: Finding) -> bool:
    """Whether the deadline ended ranks that could have gone on, and nothing else is at fault."""
    states = {report.rank: report.state for report in case.ranks}
    return all(states.get(rank) is RankState.STOPPED for rank in finding.ranks)


def _late(case: _Case) -> list[Finding]:
    found = stuck_or_late(case.ranks, case.report.deadline)
    return [found] if found is not None else []


def _unfinished(case: _Case) -> list[Finding]:
    found = unfinished(case.ranks)
    return [found] if found is not None else []


def _hazards(case: _Case) -> list[Finding]:
    traces = [report.trace for report in case.ranks]
    world = range(len(case.ranks))
    opposite = opposite_group_order(case.calls)
    return [
        *calls_by_non_members(traces),
        *created_by_members_only(case.calls, world),
        *calls_without_partner(case.calls),
        *([opposite] if opposite is not None else []),
        *(tags_out_of_order(case.calls, case.profile) if case.profile else []),
        *never_waited_by(traces),
    ]


def _warnings(case: _Case) -> list[Finding]:
    return mismatch_warnings(case.calls)


_PRECEDENCE: tuple[Callable[[_Case], Sequence[Finding]], ...] = (
    _never_fired,
    _world_findings,
    _lacking,
    _warnings,
    _mismatch,
    _swapped,
    _own_ends,
    _world_waits,
    _waiting,
    _late,
    _unfinished,
    _hazards,
)


def _passed(case: _Case) -> str:
    n = len(case.ranks)
    return "1 rank returned" if n == 1 else f"all {n} ranks returned"


def _verdict(case: _Case, head: Finding, warnings: list[Finding], also: list[Finding]) -> Verdict:
    severity = case.severity(head)
    details = {
        "severity": severity.value,
        "meaning": KINDS[head.kind].meaning,
        "advice": KINDS[head.kind].advice,
        **head.details,
        **case.common_details(),
    }
    failures = failures_table(case.ranks, head.ranks)
    if failures:
        details["failures"] = failures
    if also:
        details["also"] = [{"kind": f.kind.value, "summary": f.summary, "ranks": list(f.ranks)} for f in also]
    verdict = Verdict(head.kind, head.summary, head.ranks, head.waiting, details, warnings)
    return _blame_faults(case, _tell_handled(case, verdict))


def _tell_handled(case: _Case, verdict: Verdict) -> Verdict:
    """A rank that communicates in a ``finally`` or ``except`` has an exception to tell of."""
    for rank in (*verdict.ranks, *verdict.waiting):
        report = case.ranks[rank]
        if report.state is RankState.BLOCKED and report.failure is not None:
            verdict.summary += f"; meanwhile {handled_text(report)}"
            verdict.details.setdefault("handled", []).append(
                {"rank": rank, "type": report.failure.type, "traceback": report.failure.traceback}
            )
    return verdict


def _blame_faults(case: _Case, verdict: Verdict) -> Verdict:
    """A fault that was injected on purpose is the cause of what it brought about."""
    if not case.faults:
        return verdict
    ranks = tuple(sorted({rank for rank, _ in case.faults}))
    texts = list(dict.fromkeys(str(fault) for _, fault in case.faults))
    others = {*verdict.ranks, *verdict.waiting} - set(ranks)
    verdict.summary = f"injected on {named_ranks(ranks)}: {', '.join(texts[:4])}; {verdict.summary}"
    verdict.ranks, verdict.waiting = ranks, tuple(sorted(others))
    return verdict
