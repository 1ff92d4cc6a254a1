"""What ranks printed and logged, by rank: each line with its rank in front."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from meshsim.report import RankReport


def prefixed(rank: int, text: str) -> str:
    """Each line of a rank's text with ``[rank3]`` in front; the last one is ended, too."""
    return "".join(f"[rank{rank}] {line}\n" for line in text.split("\n")[: None if text[-1:] != "\n" else -1])


def show_output(
    item: pytest.Item, ranks: Collection[RankReport], logs: Mapping[int, str], shown: frozenset[int] | None
) -> None:
    """Hand the ranks' output to pytest as the test's own; with ``shown``, only that of those ranks."""
    for report in ranks:
        if shown is not None and report.rank not in shown:
            continue
        if report.stdout:
            sys.stdout.write(prefixed(report.rank, report.stdout))
        if report.stderr:
            sys.stderr.write(prefixed(report.rank, report.stderr))
    chosen = [rank for rank in sorted(logs) if logs[rank] and (shown is None or rank in shown)]
    if chosen:
        item.add_report_section(
            "call", "log", "".join(prefixed(rank, logs[rank]) for rank in chosen).rstrip()
        )
