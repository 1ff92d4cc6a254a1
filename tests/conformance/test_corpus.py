"""Recall and precision: every program gets its verdict, every twin gets none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from corpus import CASES, DEADLINE, KNOWN, UNKNOWABLE, Case

import meshsim
from meshsim.result import RunResult
from meshsim.verdict import VerdictKind

PROMPT = 30.0
"""The deadline in seconds of runs that must be judged without it."""
LATE = 1.5
"""The deadline of runs that are only judged by it."""


def cases(backend: str, *expectations: str) -> list[Any]:
    return [pytest.param(case, id=case.id) for case in CASES if case.expectation(backend) in expectations]


def run(case: Case, program: Any, backend: str) -> RunResult:
    late = case.expectation(backend) == DEADLINE and program is case.program
    return meshsim.run(
        program,
        case.topology,
        backend=backend,
        timeout=LATE if late else PROMPT,
        profile=case.profile,
        **case.options,
    )


def lines_named(details: Any) -> Iterator[int]:
    """Every source line of the corpus that a verdict's details name."""
    if isinstance(details, dict):
        if isinstance(details.get("line"), int):
            yield details["line"]
        if isinstance(details.get("site"), str):
            yield int(details["site"].rsplit(":", 1)[1])
        details = list(details.values())
    if isinstance(details, list):
        for entry in details:
            yield from lines_named(entry)


def check(case: Case, result: RunResult) -> None:
    verdict = result.verdict
    assert (verdict.kind, verdict.ranks, verdict.waiting) == (case.kind, case.ranks, case.waiting), verdict
    assert not result.ok
    if case.expectation(result.backend) == KNOWN:
        assert result.duration < PROMPT, "only the deadline ended the run"
    for text in case.says:
        assert text in verdict.summary
    assert case.marked_lines <= set(lines_named(verdict.details)), verdict
    if case.returns is not None:
        assert result.returns == case.returns
    result.to_json()


def check_twin(case: Case, result: RunResult) -> None:
    assert result.verdict.kind is VerdictKind.PASSED, result.verdict
    assert not result.verdict.warnings
    if case.twin_returns is not None:
        assert result.returns == case.twin_returns


@pytest.mark.parametrize("case", cases("fake", KNOWN, DEADLINE))
def test_fault_in_the_fake_world(case: Case) -> None:
    check(case, run(case, case.program, "fake"))


@pytest.mark.parametrize("case", cases("fake", KNOWN, DEADLINE, UNKNOWABLE))
def test_twin_in_the_fake_world(case: Case) -> None:
    check_twin(case, run(case, case.twin, "fake"))


@pytest.mark.parametrize("case", cases("gloo", KNOWN, DEADLINE))
def test_fault_on_gloo(case: Case) -> None:
    check(case, run(case, case.program, "gloo"))


@pytest.mark.parametrize("case", cases("gloo", KNOWN, DEADLINE, UNKNOWABLE))
def test_twin_on_gloo(case: Case) -> None:
    check_twin(case, run(case, case.twin, "gloo"))


def test_every_kind_has_a_case() -> None:
    covered = {case.kind for case in CASES}
    elsewhere = {
        VerdictKind.PASSED,
        VerdictKind.FAULT_NOT_FIRED,
        VerdictKind.NOT_RUN,
        VerdictKind.TIMEOUT,
    }
    assert covered | elsewhere == set(VerdictKind)
