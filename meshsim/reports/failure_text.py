"""A failed run as text: headline, what every rank did, and the tracebacks, the odd rank's first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from meshsim.checker.wording import named_ranks, rank_ranges, site_name
from meshsim.report import RankReport, RankState
from meshsim.reports.tables import aligned
from meshsim.result import RunResult

_TRACEBACKS = 3
_OUTPUT_LINES = 20


def failure_text(result: RunResult) -> str:
    """All of it; the parts are separated by empty lines."""
    parts = [headline(result), rank_table(result.ranks), *_tracebacks(result), *_outputs(result)]
    parts.extend(f"warning: {warning.summary}" for warning in result.verdict.warnings)
    return "\n\n".join(part for part in parts if part)


def headline(result: RunResult) -> str:
    """Topology, backend and seed, then the verdict."""
    where = f"{result.topology}, {result.world_size} ranks on {result.backend}, seed {result.seed}"
    return f"FAILED {where}\n{result.verdict.kind.value}: {result.verdict.summary}"


def rank_table(ranks: Sequence[RankReport]) -> str:
    """What each rank did last; ranks that did the same share a line."""
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for report in ranks:
        same[(report.state.value, *_what_and_where(report))].append(report.rank)
    rows = [(rank_ranges(members), *cells) for cells, members in same.items()]
    return aligned(("ranks", "state", "what", "line"), rows) if rows else ""


def _what_and_where(report: RankReport) -> tuple[str, str]:
    if report.failure is not None:
        first_line = (report.failure.message.strip().splitlines() or [""])[0]
        what = f"{report.failure.type}: {first_line}" if first_line else report.failure.type
        return _cut(what), site_name(report.failure.site) if report.failure.site else ""
    if report.pending is not None:
        call = report.pending
        group = f"{call.axis or 'group'} ({rank_ranges(call.group)})"
        return _cut(f"in {call.op} on {group}"), site_name(call.site) if call.site else ""
    if report.state is RankState.KILLED:
        return report.signal or "", ""
    if report.state is RankState.EXITED:
        return f"exit code {report.exit_code}", ""
    return "", ""


def _cut(text: str, width: int = 90) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _culprits_first(result: RunResult) -> Iterable[RankReport]:
    culprits = set(result.verdict.ranks)
    return sorted(result.ranks, key=lambda report: (report.rank not in culprits, report.ended, report.rank))


def _tracebacks(result: RunResult) -> list[str]:
    """Each different failure once; those that only follow from a lost peer are folded into one line."""
    seen: dict[tuple[str, str, str], list[RankReport]] = defaultdict(list)
    lost: list[int] = []
    for report in _culprits_first(result):
        failure = report.failure
        if failure is None:
            continue
        if failure.peer_lost and report.rank not in result.verdict.ranks:
            lost.append(report.rank)
        else:
            seen[(failure.type, failure.message, str(failure.site))].append(report)
    texts = []
    for reports in list(seen.values())[:_TRACEBACKS]:
        failure = reports[0].failure
        others = [report.rank for report in reports[1:]]
        same = f" ({named_ranks(others)}: the same)" if others else ""
        texts.append(f"rank {reports[0].rank}{same}\n{failure.traceback.rstrip() if failure else ''}")
    if len(seen) > _TRACEBACKS:
        left_out = [report.rank for reports in list(seen.values())[_TRACEBACKS:] for report in reports]
        texts.append(f"{named_ranks(left_out)}: other errors, not shown here")
    if lost:
        texts.append(f"{named_ranks(lost)}: peer lost")
    return texts


def _outputs(result: RunResult) -> list[str]:
    texts = []
    for rank in result.verdict.ranks[:_TRACEBACKS]:
        if rank >= len(result.ranks):
            continue
        report = result.ranks[rank]
        stack = report.stack.rstrip() if report.state in (RankState.STUCK, RankState.KILLED) else ""
        if stack:
            texts.append(f"stack of rank {rank}\n{stack}")
        for stream, text in (("stdout", report.stdout), ("stderr", report.stderr)):
            lines = text.splitlines()[-_OUTPUT_LINES:]
            if lines:
                texts.append(
                    f"{stream} of rank {rank}\n" + "\n".join(f"[rank{rank}] {line}" for line in lines)
                )
    return texts
