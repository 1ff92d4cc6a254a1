"""A run from the JSON that ``RunResult.to_json`` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshlib import MeshPlan
from meshsim.checker.buffers import event_from_json
from meshsim.errors import UsageError
from meshsim.report import RankFailure, RankReport, RankState
from meshsim.result import SCHEMA_VERSION, RunResult
from meshsim.trace import CallState, SourceLine, TraceEvent
from meshsim.verdict import Finding, Verdict, VerdictKind


def result_from_json(data: Mapping[str, Any]) -> RunResult:
    """The result without what JSON can't hold: returned values stay in the form that they have there.

    Raises ``UsageError`` where it is no run, or one of another schema.
    """
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"not a run that this meshsim reads: its schema_version is {version!r}, not {SCHEMA_VERSION}"
        )
    try:
        return _result(data)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"not a run as RunResult.to_json makes it: {type(error).__name__}: {error}"
        ) from error


def _result(data: Mapping[str, Any]) -> RunResult:
    traces = [[event_from_json(event) for event in events] for events in data["trace"]]
    return RunResult(
        verdict=_verdict(data["verdict"]),
        backend=data["backend"],
        topology=data["topology"],
        world_size=data["world_size"],
        plan=MeshPlan.from_json(data["plan"]),
        scenario=data["scenario"],
        seed=data["seed"],
        duration=data["duration"],
        params=data["params"],
        ranks=[
            _rank(rank, value, trace)
            for rank, value, trace in zip(data["ranks"], data["returns"], traces, strict=False)
        ],
    )


def _verdict(data: Mapping[str, Any]) -> Verdict:
    warnings = [Finding(**_finding(warning)) for warning in data["warnings"]]
    return Verdict(**_finding(data), warnings=warnings)


def _finding(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": VerdictKind(data["kind"]),
        "summary": data["summary"],
        "ranks": tuple(data["ranks"]),
        "waiting": tuple(data["waiting"]),
        "details": data["details"],
    }


def _rank(data: Mapping[str, Any], value: Any, trace: Sequence[TraceEvent]) -> RankReport:
    state = RankState(data["state"])
    open_calls = [event for event in trace if event.state is not CallState.COMPLETED]
    return RankReport(
        rank=data["rank"],
        state=state,
        value=value,
        failure=_failure(data["failure"]),
        exit_code=data["exit_code"],
        signal=data["signal"],
        stdout=data["stdout"],
        stderr=data["stderr"],
        stack=data["stack"],
        pending=open_calls[-1] if open_calls and state is RankState.BLOCKED else None,
        trace=list(trace),
        ended=data["ended"],
    )


def _failure(data: Mapping[str, Any] | None) -> RankFailure | None:
    if data is None:
        return None
    site = None
    if data["site"]:
        file, _, line = data["site"].rpartition(":")
        site = SourceLine(file, int(line))
    return RankFailure(
        data["type"], data["message"], data["traceback"], site=site, peer_lost=data["peer_lost"]
    )
