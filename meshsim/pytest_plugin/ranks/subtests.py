"""``subtests`` on a rank: failures are kept, and the body goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshsim.failure import qualified_name
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.ranks.harness import here
from meshsim.pytest_plugin.ranks.outcome import SubtestOutcome
from meshsim.pytest_plugin.ranks.representation import Representations


class RankSubtests:
    """Same interface as pytest's; the ranks' outcomes of one subtest are reported together."""

    @contextmanager
    def test(self, msg: str | None = None, **kwargs: Any) -> Iterator[None]:
        """A part of the test that may fail without ending it."""
        outcome = SubtestOutcome(msg, {name: repr(value) for name, value in kwargs.items()})
        here().subtests.append(outcome)
        try:
            yield
        except pytest_private.outcomes.Skipped as skipped:
            outcome.skipped = str(skipped.msg)
        except (Exception, pytest_private.outcomes.Failed) as error:  # noqa: BLE001 - reported, not lost
            outcome.failed = True
            outcome.type = qualified_name(type(error))
            outcome.longrepr, _ = Representations().of(error, here().settings)
