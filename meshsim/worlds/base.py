"""What a world is: it runs one request on every rank and reports on each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from meshlib import MeshPlan
    from meshsim.context import RankContext
    from meshsim.report import WorldReport

Scenario = Callable[["RankContext"], Any]
"""Runs on every rank; its return value is that rank's entry in ``RunResult.returns``."""


@dataclass(frozen=True)
class RunRequest:
    """All that a world needs to know. Nothing here knows of pytest or of the command line."""

    scenario: Scenario
    plan: MeshPlan
    seed: int = 0
    timeout: float = 60.0
    """Seconds for the run; start-up has its own."""
    params: Mapping[str, Any] = field(default_factory=dict)
    isolate: tuple[str, ...] = ()
    """Modules of which each rank gets its own globals."""
    profile: str | None = None
    """A backend whose limits are applied while running on CPU: ``nccl``, ``hccl``."""
    faults: tuple[Any, ...] = ()
    shuffle_reductions: bool = False
    """In the fake world: reduce in an order drawn from the seed, not in rank order."""

    @property
    def world_size(self) -> int:
        return self.plan.world_size


class World(Protocol):
    """A place where ranks run."""

    backend: str

    def unavailable(self) -> str | None:
        """Why this world can't run here, in one line; None when it can."""

    def run(self, request: RunRequest) -> WorldReport:
        """Run the scenario on every rank. Never raises for what the scenario does, never hangs."""
