"""One outcome from those of all ranks, by one written order.

Every rank counts. The first entry of :data:`ORDER` that applies decides:

=============  =================================================================  =========
outcome        applies when                                                       report
=============  =================================================================  =========
crash          a rank's process ended without handing in a result                 failed
hang           ranks wait for what never comes, or the deadline passed            failed
mismatch       ranks disagree about a call, or a hazard of the target backend     failed
failure        a rank raised                                                      failed
disagreement   some ranks skipped, xfailed or called ``pytest.exit``, others not  failed
exit           every rank called ``pytest.exit``                                  ends it all
skip           every rank skipped                                                 skipped
xfail          every rank called ``pytest.xfail``                                 xfailed
pass           every rank returned                                                passed
=============  =================================================================  =========

Ranks that wait only because another one skipped, or raised, are that one's consequence, not a hang.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from meshsim.checker.wording import named_ranks
from meshsim.pytest_plugin.ranks.outcome import RankKind, RankOutcome
from meshsim.report import RankReport, RankState
from meshsim.result import RunResult
from meshsim.verdict import VerdictKind


class Outcome(str, Enum):
    """What came of a mesh test."""

    CRASH = "crash"
    HANG = "hang"
    MISMATCH = "mismatch"
    FAILURE = "failure"
    DISAGREEMENT = "disagreement"
    EXIT = "exit"
    SKIP = "skip"
    XFAIL = "xfail"
    PASS = "pass"


_OWN_END = {RankKind.SKIPPED: "skipped", RankKind.XFAILED: "xfailed", RankKind.EXIT: "called pytest.exit"}
"""Ends that a rank chose itself, and that must be the same on every rank."""
_CRASHES = (VerdictKind.KILLED, VerdictKind.EXITED)
_HANGS = (
    VerdictKind.DEADLOCK,
    VerdictKind.STUCK,
    VerdictKind.TIMEOUT,
    VerdictKind.GROUP_ORDER_CYCLE,
    VerdictKind.HOST_SYNC_CYCLE,
    VerdictKind.SEND_RECV_CYCLE,
)
_FOUND_BY_RAISING = (
    VerdictKind.SHOULD_BE_SAME,
    VerdictKind.SHOULD_DIFFER,
    VerdictKind.UNSUPPORTED,
    VerdictKind.WRONG_RANK_KIND,
    VerdictKind.PLAN_MISMATCH,
)
_WAITS = (*_HANGS, VerdictKind.EXTRA_CALL, VerdictKind.UNMATCHED_RECV, VerdictKind.UNMATCHED_SEND)
"""Verdicts that a rank which ends early brings about on the others."""


@dataclass(frozen=True)
class Case:
    """A run, and its ranks' own outcomes where they handed one in."""

    result: RunResult

    @cached_property
    def outcomes(self) -> list[RankOutcome | None]:
        return [outcome_of(report) for report in self.result.ranks]

    @cached_property
    def own_ends(self) -> dict[RankKind, list[int]]:
        """Ranks by the end that they chose."""
        found: dict[RankKind, list[int]] = {}
        for rank, outcome in enumerate(self.outcomes):
            if outcome is not None and outcome.kind in _OWN_END:
                found.setdefault(outcome.kind, []).append(rank)
        return found

    @property
    def all_alike(self) -> RankKind | None:
        """The end that every rank chose, if it is one."""
        for kind, ranks in self.own_ends.items():
            if len(ranks) == len(self.result.ranks):
                return kind
        return None

    @property
    def some_ended(self) -> bool:
        return bool(self.own_ends) and self.all_alike is None

    @property
    def verdict(self) -> VerdictKind:
        return self.result.verdict.kind

    @property
    def early_end_explains(self) -> bool:
        """The verdict is about ranks that wait for one which ended by its own choice."""
        return self.some_ended and self.verdict in _WAITS


def outcome_of(report: RankReport) -> RankOutcome | None:
    """What a rank says of itself: handed back, or carried by what it raised."""
    if report.state is RankState.RETURNED:
        return report.value if isinstance(report.value, RankOutcome) else None
    carried = report.failure.carried if report.failure is not None else None
    return carried if isinstance(carried, RankOutcome) else None


def _crashed(case: Case) -> bool:
    return case.verdict in _CRASHES


def _hung(case: Case) -> bool:
    return case.verdict in _HANGS and not case.early_end_explains


def _mismatched(case: Case) -> bool:
    return (
        not case.result.ok
        and not _failed(case)
        and case.verdict not in (*_CRASHES, *_HANGS)
        and not case.early_end_explains
    )


def _failed(case: Case) -> bool:
    """Also for kinds that a rank finds out by raising: ``UNSUPPORTED``, ``SHOULD_BE_SAME``."""
    if case.verdict in (*_CRASHES, *_HANGS):
        return False
    return case.verdict is VerdictKind.RAISED or any(
        outcome is not None and outcome.kind is RankKind.FAILED
        for rank in case.result.verdict.ranks
        if rank < len(case.outcomes) and case.verdict in _FOUND_BY_RAISING
        for outcome in [case.outcomes[rank]]
    )


ORDER: tuple[tuple[Outcome, Callable[[Case], bool]], ...] = (
    (Outcome.CRASH, _crashed),
    (Outcome.HANG, _hung),
    (Outcome.MISMATCH, _mismatched),
    (Outcome.FAILURE, _failed),
    (Outcome.DISAGREEMENT, lambda case: case.some_ended),
    (Outcome.EXIT, lambda case: case.all_alike is RankKind.EXIT),
    (Outcome.SKIP, lambda case: case.all_alike is RankKind.SKIPPED),
    (Outcome.XFAIL, lambda case: case.all_alike is RankKind.XFAILED),
    (Outcome.PASS, lambda case: case.result.ok),
)


def decide(case: Case) -> Outcome:
    """The first of :data:`ORDER` that applies."""
    for outcome, applies in ORDER:
        if applies(case):
            return outcome
    raise AssertionError(f"no outcome for {case.result.verdict}")


def disagreement_text(case: Case) -> str:
    """``ranks 0, 2, 3 ran, rank 1 skipped``, with each different reason."""
    ended = {rank for ranks in case.own_ends.values() for rank in ranks}
    others = [rank for rank in range(len(case.result.ranks)) if rank not in ended]
    parts = [f"{named_ranks(others)} ran"] if others else []
    for kind, ranks in case.own_ends.items():
        parts.append(f"{named_ranks(ranks)} {_OWN_END[kind]}{_reasons(case, ranks)}")
    return ", ".join(parts)


def _reasons(case: Case, ranks: Sequence[int]) -> str:
    reasons = {o.reason for rank in ranks if (o := case.outcomes[rank]) is not None and o.reason}
    return f" ({'; '.join(sorted(reasons))})" if reasons else ""


def own_ends(case: Case) -> dict[int, tuple[str, str]]:
    """What to say of the ranks that returned: passed, or how they ended themselves, and why."""
    told = {}
    for rank, outcome in enumerate(case.outcomes):
        if outcome is not None and outcome.kind is not RankKind.FAILED:
            told[rank] = _OWN_END.get(outcome.kind, "passed"), outcome.reason
    return told


def merged_reason(case: Case) -> str:
    """The reason of an end that all ranks chose; with the ranks, where reasons differ."""
    by_reason: dict[str, list[int]] = {}
    for rank, outcome in enumerate(case.outcomes):
        if outcome is not None:
            by_reason.setdefault(outcome.reason, []).append(rank)
    if len(by_reason) == 1:
        return next(iter(by_reason))
    return "; ".join(f"{named_ranks(ranks)}: {reason}" for reason, ranks in by_reason.items())
