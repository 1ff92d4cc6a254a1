"""From a run's result to what pytest makes its report of."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from meshsim.errors import RunFailed
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.failures import failure_representation
from meshsim.pytest_plugin.outcomes import Case, Outcome, decide, merged_reason
from meshsim.pytest_plugin.shown import showing

if TYPE_CHECKING:
    from meshsim.result import RunResult


def conclusion(result: RunResult, place: tuple[str, int]) -> BaseException | None:
    """What to raise for the outcome of all ranks; None for a pass. ``place`` is the test function's."""
    case = Case(result)
    outcome = decide(case)
    if outcome is Outcome.PASS:
        return None
    if outcome is Outcome.SKIP:
        return pytest_private.skipped_at_test(merged_reason(case))
    if outcome is Outcome.XFAIL:
        return pytest_private.outcomes.XFailed(merged_reason(case))
    if outcome is Outcome.EXIT:
        codes = [own.exit_code for own in case.outcomes if own is not None and own.exit_code is not None]
        return pytest_private.outcomes.Exit(merged_reason(case), returncode=max(codes, default=None))
    return showing(_exception_of(case), failure_representation(case, outcome, place))


def _exception_of(case: Case) -> BaseException:
    """The odd rank's exception, so that ``xfail(raises=...)`` and debuggers see it; RunFailed without one."""
    for rank in case.result.verdict.ranks:
        failure = case.result.ranks[rank].failure if rank < len(case.result.ranks) else None
        outcome = case.outcomes[rank] if rank < len(case.outcomes) else None
        if failure is None or outcome is None:
            continue
        if isinstance(failure.exception, Exception | pytest_private.outcomes.OutcomeException):
            return failure.exception
        rebuilt = _rebuilt(outcome.bases, failure.message)
        if rebuilt is not None:
            return rebuilt
    return RunFailed(case.result)


def _rebuilt(bases: tuple[str, ...], message: str) -> BaseException | None:
    """An exception that couldn't leave its process, of the nearest class that is known here."""
    for name in bases:
        module, _, qualname = name.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module or "builtins"), qualname, None)
        except ImportError:
            continue
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind.__new__(kind, message)
    return None
