"""What the stages of a smoke run share: the world, the time that is left, and one decision for all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from meshlib import MeshPlan
from meshsim.result import RunResult
from meshsim.runner import build_request, run_request
from meshsim.worlds.base import World

T = TypeVar("T")
_LONGEST = 120.0
"""Seconds for one scenario."""


class Session:
    """One smoke run. In a job every rank has one, and all do the same in the same order."""

    def __init__(
        self, world: World, plan: MeshPlan, topology: str, *, budget: float | None, seed: int = 0
    ) -> None:
        self.world = world
        self.plan = plan
        self.topology = topology
        self.budget = budget
        self.seed = seed
        self._began = time.monotonic()

    @property
    def in_a_job(self) -> bool:
        """Whether the ranks are those of a job, not workers of this machine."""
        return hasattr(self.world, "share")

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def share(self, make: Callable[[], T]) -> T:
        """What ``make`` gives on rank 0, on every rank."""
        share = getattr(self.world, "share", None)
        if share is None:
            return make()
        shared: T = share(make)
        return shared

    def time_left(self, part: float = 1.0) -> float:
        """Seconds until ``part`` of the budget is used up, the same on all ranks; infinite without one."""
        budget = self.budget
        if budget is None:
            return float("inf")
        return self.share(lambda: budget * part - self.elapsed)

    def run(
        self,
        program: Callable[..., Any],
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = _LONGEST,
    ) -> RunResult:
        """Run a program on every rank, within the time that is left."""
        limit = max(1.0, min(timeout, self.time_left()))
        request = build_request(program, self.plan, seed=self.seed, timeout=limit, params=params)
        return run_request(request, self.world, name=program.__name__, topology=self.topology)
