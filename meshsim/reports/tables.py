"""Plain aligned text: the table of a sweep, and what went wrong in one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from meshsim.result import RunResult

RESULT_COLUMNS = ("ranks", "topology", "backend", "verdict", "seconds")


def result_cells(result: RunResult) -> tuple[str, ...]:
    """One run as the cells of ``RESULT_COLUMNS``."""
    verdict = result.verdict.kind.value
    if result.not_run:
        verdict = f"not run: {result.verdict.summary}"
    elif result.ok and result.verdict.warnings:
        count = len(result.verdict.warnings)
        verdict = f"{verdict}, {count} warning{'' if count == 1 else 's'}"
    seconds = "-" if result.not_run else f"{result.duration:.2f}"
    return (str(result.world_size), result.topology, result.backend, verdict, seconds)


def results_table(results: Sequence[RunResult]) -> str:
    """One line a run and a last line with the counts."""
    rows = [result_cells(result) for result in results]
    return f"{aligned(RESULT_COLUMNS, rows, right=(0, 4))}\n{outcome_line(results)}"


def outcome_line(results: Sequence[RunResult]) -> str:
    """``12 runs: 10 passed, 1 failed, 1 not run``."""
    counts = Counter(
        "not run" if result.not_run else "passed" if result.ok else "failed" for result in results
    )
    listed = ", ".join(f"{counts[word]} {word}" for word in ("passed", "failed", "not run") if counts[word])
    return f"{len(results)} run{'' if len(results) == 1 else 's'}: {listed or 'none'}"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns two spaces apart; those numbered in ``right`` are aligned to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(line(row) for row in (head, *rows))
