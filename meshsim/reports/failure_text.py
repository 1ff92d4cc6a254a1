"""A failed run as text: where it ran, the verdict, how each rank ended, and what the culprits printed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from meshsim.checker.render import render
from meshsim.checker.wording import rank_ranges, site_name
from meshsim.report import RankReport, RankState
from meshsim.reports.tables import aligned
from meshsim.result import RunResult

_RANKS_OF_OUTPUT = 3
_OUTPUT_LINES = 20


def failure_text(result: RunResult) -> str:
    """All of it; the parts are separated by empty lines."""
    parts = [headline(result), render(result.verdict).rstrip(), rank_table(result.ranks), *_outputs(result)]
    return "\n\n".join(part for part in parts if part)


def headline(result: RunResult) -> str:
    """One line: topology, backend and seed, all that it takes to run it again."""
    return f"FAILED {result.topology}, {result.world_size} ranks on {result.backend}, seed {result.seed}"


def rank_table(ranks: Sequence[RankReport], told: Mapping[int, tuple[str, str]] | None = None) -> str:
    """How each rank ended; ranks that ended alike share a line.

    ``told`` has, for some ranks, other words for the state and for what happened.
    """
    same: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for report in ranks:
        cells = (report.state.value, *what_and_where(report))
        if told and report.rank in told:
            cells = (*told[report.rank], "")
        same[cells].append(report.rank)
    rows = [(rank_ranges(members), state, _cut(what), line) for (state, what, line), members in same.items()]
    return aligned(("ranks", "state", "what", "line"), rows) if rows else ""


def what_and_where(report: RankReport) -> tuple[str, str]:
    """What happened to a rank, and the line where it did; each may be empty."""
    if report.failure is not None:
        first_line = (report.failure.message.strip().splitlines() or [""])[0]
        what = f"{report.failure.type}: {first_line}" if first_line else report.failure.type
        return what, site_name(report.failure.site) if report.failure.site else ""
    if report.pending is not None:
        call = report.pending
        group = f"{call.axis or 'group'} ({rank_ranges(call.group)})"
        return f"in {call.op} on {group}", site_name(call.site) if call.site else ""
    if report.state is RankState.KILLED:
        return report.signal or "", ""
    if report.state is RankState.EXITED:
        return "process gone" if report.exit_code is None else f"exit code {report.exit_code}", ""
    return "", ""


def _cut(text: str, width: int = 90) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _outputs(result: RunResult) -> list[str]:
    texts = []
    culprits = [report for report in result.ranks if report.rank in result.verdict.ranks]
    for report in culprits[:_RANKS_OF_OUTPUT]:
        for stream, text in (("stdout", report.stdout), ("stderr", report.stderr)):
            lines = text.splitlines()[-_OUTPUT_LINES:]
            if lines:
                shown = "\n".join(f"[rank{report.rank}] {line}" for line in lines)
                texts.append(f"{stream} of rank {report.rank}\n{shown}")
    return texts
