"""``meshsim.sweep``: one scenario on many topologies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from meshsim.errors import RunFailed
from meshsim.result import SCHEMA_VERSION, RunResult
from meshsim.runner import resolve_scenario, run, why_unsupported
from meshsim.selection import Chosen, Supports, choose
from meshsim.topologies import build_plan

if TYPE_CHECKING:
    from meshlib import ParallelDims
    from meshsim.worlds.base import World


@dataclass
class SweepResult(Sequence[RunResult]):
    """The results of a sweep in the order of the runs. ``str(sweep)`` is a table."""

    results: list[RunResult]

    @property
    def ok(self) -> bool:
        """No run failed, and at least one was run."""
        return not self.failed and any(result.ok for result in self.results)

    @property
    def failed(self) -> list[RunResult]:
        return [result for result in self.results if result.failed]

    @property
    def not_run(self) -> list[RunResult]:
        """Topologies that the scenario says it doesn't support; the reason is the verdict's summary."""
        return [result for result in self.results if result.not_run]

    @overload
    def __getitem__(self, place: int) -> RunResult: ...
    @overload
    def __getitem__(self, place: slice) -> list[RunResult]: ...
    def __getitem__(self, place: int | slice) -> RunResult | list[RunResult]:
        return self.results[place]

    def __len__(self) -> int:
        return len(self.results)

    def table(self) -> str:
        """One line a run: ranks, topology, backend, verdict, seconds; then the count of each outcome."""
        from meshsim.reports.tables import results_table

        return results_table(self.results)

    def __str__(self) -> str:
        return self.table()

    def to_json(self) -> dict[str, Any]:
        """JSON-safe: ``{"schema_version", "ok", "runs"}``, each run as in ``RunResult.to_json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "ok": self.ok,
            "runs": [result.to_json() for result in self.results],
        }


def sweep(
    scenario: Callable[..., Any] | str,
    *,
    world_sizes: Iterable[int] | int | None = None,
    topologies: Iterable[str | ParallelDims] | None = None,
    axes: Iterable[str] | Mapping[str, Iterable[int]] | str | None = None,
    cover: int | str | None = None,
    backend: str | World = "fake",
    raises: bool = False,
    **options: Any,
) -> SweepResult:
    """Run ``scenario`` on every topology of every rank count in ``world_sizes``, or on the ``topologies``.

    ``axes`` limits the axes that are split: names, or names with their values (``{"tp": [1, 2]}``).
    ``cover=2`` takes a selection that contains every valid pair of axis sizes and every rank count,
    ``cover="each"`` one topology of each rank count, the one that splits most axes of those supported.
    ``topologies`` with ``world_sizes``: each topology at each of those rank counts.
    The other ``options`` are those of ``meshsim.run``. With ``raises`` the first failed run is raised as
    ``RunFailed`` when all have been run.
    """
    target, name = resolve_scenario(scenario)
    chosen = choose(
        world_sizes=world_sizes,
        topologies=topologies,
        axes=axes,
        cover=cover,
        ep_scope=options.get("ep_scope", "stage"),
        supports=supported_by(target, options),
    )
    swept = SweepResult(list(run_each(target, chosen, name=name, backend=backend, **options)))
    if raises and swept.failed:
        raise RunFailed(swept.failed[0])
    return swept


def supported_by(scenario: Callable[..., Any], options: Mapping[str, Any]) -> Supports:
    """Whether a scenario supports a topology, by its own word."""
    how = {name: options[name] for name in ("order", "ep_scope", "node_size") if name in options}

    def supports(candidate: Chosen) -> bool:
        return why_unsupported(scenario, build_plan(*candidate, **how)) is None

    return supports


def run_each(
    scenario: Callable[..., Any] | str,
    chosen: Iterable[Chosen],
    *,
    name: str,
    backend: str | World,
    **options: Any,
) -> Iterator[RunResult]:
    """One result after the other, as they come."""
    for topology, world_size in chosen:
        result = run(scenario, topology, world_size=world_size, backend=backend, **options)
        result.scenario = name
        yield result
