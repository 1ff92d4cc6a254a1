"""What a run hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshsim.report import RankFailure, RankReport, RankState
from meshsim.trace import Trace
from meshsim.verdict import Finding, Verdict, VerdictKind

if TYPE_CHECKING:
    from meshlib import MeshPlan

SCHEMA_VERSION = 1
"""Of the JSON that ``RunResult.to_json`` makes; ``meshsim/reports/result.schema.json`` describes it."""


@dataclass
class RunResult:
    """One run on one topology: what each rank returned, what it communicated, and what came of it.

    ``ranks`` are the ranks' reports in rank order; empty when the scenario wasn't run (verdict ``not run``).
    ``duration`` is in seconds.
    """

    verdict: Verdict
    backend: str
    topology: str
    world_size: int
    plan: MeshPlan
    scenario: str = ""
    seed: int = 0
    duration: float = 0.0
    ranks: list[RankReport] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    is_complete: bool = True
    """False on a job's ranks besides the first: they know the verdict, and of the ranks only themselves."""

    @property
    def ok(self) -> bool:
        """Every rank finished, and nothing is wrong. Warnings don't change it."""
        return self.verdict.ok

    @property
    def not_run(self) -> bool:
        """The scenario said that it doesn't support this topology: neither a pass nor a failure."""
        return self.verdict.kind is VerdictKind.NOT_RUN

    @property
    def failed(self) -> bool:
        return not self.ok and not self.not_run

    @property
    def returns(self) -> list[Any]:
        """What the scenario returned, by rank; None where a rank didn't finish."""
        values = [report.value if report.state is RankState.RETURNED else None for report in self.ranks]
        return values or [None] * self.world_size

    @property
    def trace(self) -> Trace:
        """The communication calls of all ranks: ``trace[rank]`` is one rank's list."""
        return Trace([report.trace for report in self.ranks] or [[] for _ in range(self.world_size)])

    def to_json(self) -> dict[str, Any]:
        """JSON-safe data with ``schema_version``. Tensors become digest, dtype, shape and statistics."""
        from meshsim.reports.values import to_json_value

        return {
            "schema_version": SCHEMA_VERSION,
            "scenario": self.scenario,
            "backend": self.backend,
            "topology": self.topology,
            "world_size": self.world_size,
            "seed": self.seed,
            "params": to_json_value(self.params),
            "ok": self.ok,
            "duration": self.duration,
            "plan_digest": self.plan.digest,
            "plan": self.plan.to_json(),
            "verdict": _verdict_json(self.verdict),
            "returns": [to_json_value(value) for value in self.returns],
            "ranks": [_rank_json(report) for report in self.ranks],
            "trace": to_json_value(self.trace.to_json()),
        }

    def __str__(self) -> str:
        return f"{self.topology} on {self.backend}: {self.verdict}"


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {**_finding_json(verdict), "warnings": [_finding_json(warning) for warning in verdict.warnings]}


def _finding_json(finding: Verdict | Finding) -> dict[str, Any]:
    from meshsim.reports.values import to_json_value

    return {
        "kind": finding.kind.value,
        "summary": finding.summary,
        "ranks": list(finding.ranks),
        "waiting": list(finding.waiting),
        "details": to_json_value(finding.details),
    }


def _rank_json(report: RankReport) -> dict[str, Any]:
    return {
        "rank": report.rank,
        "state": report.state.value,
        "failure": _failure_json(report.failure),
        "exit_code": report.exit_code,
        "signal": report.signal,
        "stdout": report.stdout,
        "stderr": report.stderr,
        "stack": report.stack,
        "ended": report.ended,
    }


def _failure_json(failure: RankFailure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {
        "type": failure.type,
        "message": failure.message,
        "traceback": failure.traceback,
        "site": str(failure.site) if failure.site else None,
        "peer_lost": failure.peer_lost,
    }
