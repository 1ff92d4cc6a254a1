"""Subtests of a mesh test: one report for each, from all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from meshsim.checker.wording import named_ranks
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.outcomes import Case
from meshsim.pytest_plugin.ranks.outcome import SubtestOutcome
from meshsim.pytest_plugin.shown import showing

_Key = tuple[str | None, tuple[tuple[str, str], ...]]


class _Shown(str):
    """Text that is a value's ``repr`` already."""

    __slots__ = ()

    __repr__ = str.__str__


def report_subtests(item: pytest.Function, case: Case) -> None:
    """Repeat the ranks' subtests in pytest's own process, where they are reported."""
    subtests: Any = item.funcargs.get("subtests")
    if subtests is None:
        return
    for (message, values), outcomes in _merged(case).items():
        failed = {rank: outcome for rank, outcome in outcomes.items() if outcome.failed}
        skipped = [outcome.skipped for outcome in outcomes.values() if outcome.skipped is not None]
        with subtests.test(message, **{name: _Shown(value) for name, value in values}):
            if failed:
                first, ranks = next(iter(failed.values())), named_ranks(failed)
                error = pytest_private.outcomes.Failed(f"{ranks}: {first.type}", pytrace=False)
                raise showing(error, pytest_private.with_ranks(first.longrepr, ranks))
            if len(skipped) == len(outcomes):
                pytest.skip(skipped[0])


def _merged(case: Case) -> dict[_Key, dict[int, SubtestOutcome]]:
    found: dict[_Key, dict[int, SubtestOutcome]] = {}
    for rank, outcome in enumerate(case.outcomes):
        for subtest in outcome.subtests if outcome is not None else ():
            key = subtest.message, tuple(subtest.values.items())
            found.setdefault(key, {})[rank] = subtest
    return found
