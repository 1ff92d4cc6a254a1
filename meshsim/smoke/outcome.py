"""What a smoke run found, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

SCHEMA_VERSION = 1


class StageState(str, Enum):
    PASSED = "passed"
    SLOW = "slow"
    """Right, but some rank, host or link is far slower than the others."""
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass
class Check:
    """One thing that was checked: a scenario, an axis, a link."""

    name: str
    state: StageState
    text: str = ""
    seconds: float = 0.0


@dataclass
class Stage:
    """One part of the smoke run. ``lines`` are for people, ``data`` for programs."""

    name: str
    state: StageState
    summary: str
    lines: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class SmokeReport:
    """The whole of it."""

    topology: str
    world_size: int
    backend: str
    hosts: tuple[str, ...]
    seconds: float = 0.0
    budget: float | None = None
    stages: list[Stage] = field(default_factory=list)
    slow_fails: bool = True
    """Whether a slow place makes the run fail; not where all ranks share one machine's cores."""

    @property
    def ok(self) -> bool:
        bad = {StageState.FAILED, StageState.SLOW} if self.slow_fails else {StageState.FAILED}
        return not any(stage.state in bad for stage in self.stages)

    @property
    def verdict(self) -> str:
        """One line: the first stage that isn't right, else that all is."""
        order = (StageState.FAILED, StageState.SLOW)
        found = [stage for state in order for stage in self.stages if stage.state is state]
        if not found:
            return "everything that was run is right"
        return f"{found[0].name}: {found[0].summary}"

    def to_json(self) -> dict[str, Any]:
        """JSON-safe data with ``schema_version``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "ok": self.ok,
            "verdict": self.verdict,
            "topology": self.topology,
            "world_size": self.world_size,
            "backend": self.backend,
            "hosts": list(self.hosts),
            "seconds": self.seconds,
            "budget": self.budget,
            "stages": [
                {
                    "name": stage.name,
                    "state": stage.state.value,
                    "summary": stage.summary,
                    "seconds": stage.seconds,
                    "checks": [
                        {"name": c.name, "state": c.state.value, "text": c.text, "seconds": c.seconds}
                        for c in stage.checks
                    ],
                    **stage.data,
                }
                for stage in self.stages
            ],
        }
