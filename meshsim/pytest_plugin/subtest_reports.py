"""Subtests of a mesh test: one report for each, from all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from meshsim.checker.wording import named_ranks
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.keys import REPRESENTATION_KEY
from meshsim.pytest_plugin.outcomes import Case
from meshsim.pytest_plugin.ranks.outcome import SubtestOutcome

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
        try:
            with subtests.test(message, **{name: _Shown(value) for name, value in values}):
                if failed:
                    first = next(iter(failed.values()))
                    item.stash[REPRESENTATION_KEY] = pytest_private.with_ranks(
                        first.longrepr, named_ranks(failed)
                    )
                    pytest.fail(f"{named_ranks(failed)}: {first.type}", pytrace=False)
                if len(skipped) == len(outcomes):
                    pytest.skip(skipped[0])
        finally:
            if REPRESENTATION_KEY in item.stash:
                del item.stash[REPRESENTATION_KEY]


def _merged(case: Case) -> dict[_Key, dict[int, SubtestOutcome]]:
    found: dict[_Key, dict[int, SubtestOutcome]] = {}
    for rank, outcome in enumerate(case.outcomes):
        for subtest in outcome.subtests if outcome is not None else ():
            key = subtest.message, tuple(subtest.values.items())
            found.setdefault(key, {})[rank] = subtest
    return found
