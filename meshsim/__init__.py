"""Run the code of a distributed training program on every rank of any mesh, anywhere.

``meshsim.run`` runs a scenario once, ``meshsim.sweep`` on many topologies.
Importing this package doesn't import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshsim.asserting import all_agree, differs_along, raises_on, vote_skip
    from meshsim.context import RankContext
    from meshsim.errors import CannotRun, MeshsimError, RunFailed, UsageError
    from meshsim.pytest_plugin.rank_fixtures import rank_fixture
    from meshsim.recordings.running import ReplayResult, replay
    from meshsim.report import RankFailure, RankReport, RankState
    from meshsim.reports.flight_recorder import write_flight_recorder
    from meshsim.result import RunResult
    from meshsim.runner import run
    from meshsim.sweeps import SweepResult, sweep
    from meshsim.trace import CallState, SourceLine, Trace, TraceEvent
    from meshsim.verdict import Finding, Severity, Verdict, VerdictKind

# Public name -> the module that has it. A public submodule stands for itself.
_PUBLIC = {
    "CallState": "meshsim.trace",
    "CannotRun": "meshsim.errors",
    "Finding": "meshsim.verdict",
    "MeshsimError": "meshsim.errors",
    "RankContext": "meshsim.context",
    "RankFailure": "meshsim.report",
    "RankReport": "meshsim.report",
    "RankState": "meshsim.report",
    "ReplayResult": "meshsim.recordings.running",
    "RunFailed": "meshsim.errors",
    "RunResult": "meshsim.result",
    "Severity": "meshsim.verdict",
    "SourceLine": "meshsim.trace",
    "SweepResult": "meshsim.sweeps",
    "Trace": "meshsim.trace",
    "TraceEvent": "meshsim.trace",
    "UsageError": "meshsim.errors",
    "Verdict": "meshsim.verdict",
    "VerdictKind": "meshsim.verdict",
    "replay": "meshsim.recordings.running",
    "all_agree": "meshsim.asserting",
    "differs_along": "meshsim.asserting",
    "raises_on": "meshsim.asserting",
    "rank_fixture": "meshsim.pytest_plugin.rank_fixtures",
    "run": "meshsim.runner",
    "sweep": "meshsim.sweeps",
    "vote_skip": "meshsim.asserting",
    "write_flight_recorder": "meshsim.reports.flight_recorder",
}

__all__ = [
    "CallState",
    "CannotRun",
    "Finding",
    "MeshsimError",
    "RankContext",
    "RankFailure",
    "RankReport",
    "RankState",
    "ReplayResult",
    "RunFailed",
    "RunResult",
    "Severity",
    "SourceLine",
    "SweepResult",
    "Trace",
    "TraceEvent",
    "UsageError",
    "Verdict",
    "VerdictKind",
    "all_agree",
    "differs_along",
    "raises_on",
    "rank_fixture",
    "replay",
    "run",
    "sweep",
    "vote_skip",
    "write_flight_recorder",
]


def __getattr__(name: str) -> Any:
    module_name = _PUBLIC.get(name)
    if module_name is None:
        raise AttributeError(f"module 'meshsim' has no attribute {name!r}")
    module = importlib.import_module(module_name)
    value = module if module_name == f"meshsim.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
