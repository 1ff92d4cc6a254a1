"""The grid of verdicts: a row for each scenario and topology, a column for each world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshsim.reports.html.run_data import PageRun

OUTCOMES = {"failed": "failed", "warned": "passed with warnings", "passed": "passed", "not-run": "not run"}
MARKS = {"failed": "✗", "warned": "!", "passed": "✓", "not-run": "–"}


@dataclass
class Cell:
    """One run in the grid; ``number`` is its place among the runs."""

    number: int
    head: dict[str, Any]

    @property
    def mark(self) -> str:
        return MARKS[self.head["outcome"]]

    @property
    def label(self) -> str:
        warnings = self.head["warnings"] if self.head["outcome"] == "warned" else 0
        return (
            f"{self.head['kind']}, {warnings} warning{'' if warnings == 1 else 's'}"
            if warnings
            else str(self.head["kind"])
        )


@dataclass
class Row:
    """One topology of a scenario; ``cells`` has a list of runs for each world, in the grid's order."""

    topology: str
    world_size: int
    cells: list[list[Cell]]


@dataclass
class Grid:
    worlds: list[str]
    scenarios: dict[str, list[Row]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Runs by outcome, in the order of ``OUTCOMES``; outcomes that no run had are left out."""


def grid_of(runs: Sequence[PageRun]) -> Grid:
    """Rows and columns in the order in which they first came."""
    worlds = list(dict.fromkeys(run.head["backend"] for run in runs))
    grid = Grid(worlds)
    rows: dict[tuple[str, str, int], Row] = {}
    for number, run in enumerate(runs):
        head = run.head
        key = (head["scenario"], head["topology"], head["world_size"])
        if key not in rows:
            rows[key] = Row(head["topology"], head["world_size"], [[] for _ in worlds])
            grid.scenarios.setdefault(head["scenario"], []).append(rows[key])
        rows[key].cells[worlds.index(head["backend"])].append(Cell(number, head))
    counts = {name: sum(run.head["outcome"] == name for run in runs) for name in OUTCOMES}
    grid.counts = {name: count for name, count in counts.items() if count}
    return grid
