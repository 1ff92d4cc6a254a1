"""A failed mesh test as pytest shows it: the odd rank first, the others folded below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshsim.checker.render import render
from meshsim.checker.wording import named_ranks
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.outcomes import Case, Outcome, disagreement_text, own_ends
from meshsim.pytest_plugin.ranks.outcome import RankKind, RankOutcome
from meshsim.report import RankReport, RankState
from meshsim.reports.failure_text import rank_table

if TYPE_CHECKING:
    from meshsim.result import RunResult

_TRACEBACKS = 3
"""Different failures that are shown in full."""


def failure_representation(case: Case, outcome: Outcome, place: tuple[str, int]) -> Any:
    """What pytest prints for the test, and its short summary's line. ``place`` is the test function's."""
    result = case.result
    groups = _failures(case)
    head = f"{_setting(result)}: {_headline(case, outcome)}"
    if outcome is not Outcome.FAILURE or not groups:
        text = head if outcome is Outcome.DISAGREEMENT else f"{head}\n\n{render(result.verdict).rstrip()}"
        path, line = _site(result) or place
        crash = pytest_private.crash_location(path, line, _headline(case, outcome))
        shown = pytest_private.ExceptionChainRepr([(pytest_private.text_representation(text), crash, None)])
        for ranks, failed in groups[:_TRACEBACKS]:
            shown.addsection(named_ranks(ranks), failed.text)
    else:
        ranks, failed = groups[0]
        shown = pytest_private.with_ranks(failed.longrepr, named_ranks(ranks), head)
        for others, other in groups[1:_TRACEBACKS]:
            shown.addsection(named_ranks(others), other.text)
        if len(groups) > _TRACEBACKS:
            shown.addsection("more", f"{len(groups) - _TRACEBACKS} more different failures, not shown here")
    rest = _others(case)
    if rest:
        shown.addsection("ranks", rest)
    return shown


def _setting(result: RunResult) -> str:
    ranks = f"{result.world_size} rank{'' if result.world_size == 1 else 's'}"
    return f"{result.topology}, {ranks} on {result.backend}, seed {result.seed}"


def _headline(case: Case, outcome: Outcome) -> str:
    if outcome is Outcome.DISAGREEMENT:
        return disagreement_text(case)
    return case.result.verdict.summary or case.result.verdict.kind.value


def _failures(case: Case) -> list[tuple[list[int], RankOutcome]]:
    """Each different failure with its ranks: the culprits' first, in the order in which they ended."""
    culprits = set(case.result.verdict.ranks)
    groups: dict[object, tuple[list[int], RankOutcome]] = {}
    for report in sorted(case.result.ranks, key=lambda r: (r.rank not in culprits, r.ended, r.rank)):
        outcome = case.outcomes[report.rank]
        if outcome is None or outcome.kind is not RankKind.FAILED or _is_consequence(report, culprits):
            continue
        groups.setdefault(_what_failed(report), ([], outcome))[0].append(report.rank)
    for ranks, _ in groups.values():
        ranks.sort()
    return list(groups.values())


def _what_failed(report: RankReport) -> object:
    failure = report.failure
    if failure is None:
        return None
    return failure.type, failure.site, failure.message.strip().partition("\n")[0]


def _is_consequence(report: RankReport, culprits: set[int]) -> bool:
    return report.rank not in culprits and report.failure is not None and report.failure.peer_lost


def _others(case: Case) -> str:
    """How the ranks ended, where that says more than the rest: those that agree share a line."""
    ranks = case.result.ranks
    if len(ranks) < 2:
        return ""
    culprits = set(case.result.verdict.ranks)
    lost = [r.rank for r in ranks if _is_consequence(r, culprits)]
    shown = [r for r in ranks if r.rank not in lost]
    lines = [rank_table(shown, own_ends(case))] if shown else []
    if lost:
        lines.append(f"{len(lost)} rank{'' if len(lost) == 1 else 's'}: peer lost ({named_ranks(lost)})")
    return "\n".join(lines)


def _site(result: RunResult) -> tuple[str, int] | None:
    """The line at fault: of a culprit's failure, or of the call that it waits in or made last."""
    for rank in result.verdict.ranks or result.verdict.waiting:
        if rank >= len(result.ranks):
            continue
        report = result.ranks[rank]
        site = report.failure.site if report.failure is not None else None
        if site is None and report.pending is not None:
            site = report.pending.site
        if site is None and report.state is not RankState.NOT_STARTED and report.trace:
            site = report.trace[-1].site
        if site is not None:
            return site.file, site.line
    return None
