"""Results as a world and the checker would make them, written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshlib import MeshPlan
from meshsim.report import RankFailure, RankReport, RankState
from meshsim.result import RunResult
from meshsim.trace import CallState, SourceLine, TraceEvent
from meshsim.verdict import Finding, Verdict, VerdictKind

LINE = SourceLine("/home/me/train.py", 12, "step", "dist.all_reduce(loss)")


def call(rank: int, group: tuple[int, ...], **fields: Any) -> TraceEvent:
    """An all-reduce of one float from 0.5 s to 0.75 s."""
    given = {
        "op": "all_reduce",
        "axis": "dp",
        "dtype": "float32",
        "shapes": ((1,),),
        "numel": 1,
        "reduce_op": "SUM",
        "site": LINE,
        "state": CallState.COMPLETED,
        "started": 0.5,
        "finished": 0.75,
        **fields,
    }
    return TraceEvent(rank=rank, index=0, group=group, **given)


@pytest.fixture
def passed() -> RunResult:
    ranks = [
        RankReport(rank, RankState.RETURNED, value=rank, trace=[call(rank, (0, 1))], ended=1.0)
        for rank in (0, 1)
    ]
    warning = Finding(VerdictKind.NEVER_WAITED, "1 work never waited for", ranks=(0,))
    return RunResult(
        verdict=Verdict(VerdictKind.PASSED, "both ranks returned", warnings=[warning]),
        backend="fake",
        topology="dp=2",
        world_size=2,
        plan=MeshPlan.build("dp=2", 2),
        scenario="train.py::step",
        duration=1.0,
        ranks=ranks,
    )


@pytest.fixture
def failed() -> RunResult:
    failure = RankFailure("ValueError", "wrong\x00 <loss>", "Traceback\nValueError: wrong", site=LINE)
    waiting = call(0, (0, 1), state=CallState.ISSUED, finished=None)
    ranks = [
        RankReport(0, RankState.BLOCKED, pending=waiting, stdout="all well", trace=[waiting], ended=2.0),
        RankReport(1, RankState.RAISED, value=5, failure=failure, stdout="step 1\nstep 2\n", ended=1.0),
    ]
    return RunResult(
        verdict=Verdict(
            VerdictKind.RAISED, "rank 1 raised ValueError: wrong\x00 <loss>", ranks=(1,), waiting=(0,)
        ),
        backend="gloo",
        topology="tp=2",
        world_size=2,
        plan=MeshPlan.build("tp=2", 2),
        scenario="train.py::step",
        seed=3,
        duration=2.0,
        ranks=ranks,
    )


@pytest.fixture
def not_run() -> RunResult:
    return RunResult(
        verdict=Verdict(VerdictKind.NOT_RUN, "pp isn't covered yet"),
        backend="fake",
        topology="pp=2",
        world_size=2,
        plan=MeshPlan.build("pp=2", 2),
        scenario="train.py::step",
    )


@pytest.fixture
def make_call() -> Callable[..., TraceEvent]:
    return call
