"""The terminal: colours, tables and progress there; plain text when the output is a file or a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from meshsim.reports.tables import RESULT_COLUMNS, outcome_line, result_cells, results_table
from meshsim.result import RunResult
from meshsim.worlds.speaking import speaks_for_all


def stdout() -> Console:
    """A console on standard output as it is now. Rich itself honours NO_COLOR."""
    if not speaks_for_all():
        return Console(file=open(os.devnull, "w"), highlight=False)
    return Console(file=sys.stdout, highlight=False)


def write(text: str) -> None:
    """Plain text and a newline, never wrapped. Of the ranks of a job one writes."""
    if speaks_for_all():
        sys.stdout.write(text + "\n")


def with_progress(results: Iterable[RunResult], total: int) -> Iterator[RunResult]:
    """The results as they come, with a progress bar on standard error when that is a terminal."""
    # Bound to the stream as it is now: while a rank runs, sys.stderr may be that rank's own.
    console = Console(file=sys.stderr, highlight=False)
    if not console.is_terminal or total < 2 or not speaks_for_all():
        yield from results
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    with bar as progress:
        task = progress.add_task("", total=total)
        failed = 0
        for result in results:
            failed += result.failed
            text = f"{result.backend} {result.topology}" + (f"  [red]{failed} failed[/red]" if failed else "")
            progress.update(task, advance=1, description=text)
            yield result


def show_results(results: Sequence[RunResult]) -> None:
    """The table of all runs."""
    console = stdout()
    if not console.is_terminal:
        write(results_table(results))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(RESULT_COLUMNS):
        table.add_column(column, justify="right" if place in (0, 4) else "left", overflow="fold")
    for result in results:
        cells = [Text(cell) for cell in result_cells(result)]
        cells[3].stylize("yellow" if result.not_run else "green" if result.ok else "bold red")
        table.add_row(*cells)
    console.print(table)
    console.print(Text(outcome_line(results), style="bold"))
