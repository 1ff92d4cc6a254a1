"""The scenario library on the run's own topology."""

from __future__ import annotations

from collections import Counter

from meshsim.result import RunResult
from meshsim.scenarios import BUILT_IN, load
from meshsim.smoke.outcome import Check, Stage, StageState
from meshsim.smoke.session import Session

PART = 0.6
"""Of the budget, after which no further scenario is begun."""
_LEAST = 2.0
"""Seconds that a scenario needs to be worth beginning."""


def library(session: Session) -> Stage:
    """Run every built-in scenario that supports the topology, as far as the time reaches."""
    began = session.elapsed
    checks = [_check(session, name) for name in BUILT_IN]
    counts = Counter(check.state for check in checks)
    order = (StageState.FAILED, StageState.PASSED, StageState.NOT_RUN)
    summary = ", ".join(f"{counts[state]} {state.value}" for state in order if counts[state])
    failed = [check for check in checks if check.state is StageState.FAILED]
    if failed:
        summary += f"; {failed[0].name}: {failed[0].text}"
    state = (
        StageState.FAILED
        if failed
        else StageState.PASSED
        if counts[StageState.PASSED]
        else StageState.NOT_RUN
    )
    return Stage(
        "scenarios",
        state,
        summary,
        lines=[f"{check.name}: {check.text}" for check in failed],
        checks=checks,
        seconds=session.elapsed - began,
    )


def _check(session: Session, name: str) -> Check:
    if session.time_left(PART) < _LEAST:
        return Check(name, StageState.NOT_RUN, f"the budget of {session.budget:g} s is spent")
    result = session.run(load(name))
    return Check(name, _state(result), "" if result.ok else result.verdict.summary, result.duration)


def _state(result: RunResult) -> StageState:
    if result.not_run:
        return StageState.NOT_RUN
    return StageState.PASSED if result.ok else StageState.FAILED
