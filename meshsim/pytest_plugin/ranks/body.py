"""A test's body as a scenario: what runs on every rank."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from meshsim.context import RankContext
from meshsim.failure import qualified_name
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.ranks.assertions import Rewriting, comparisons_explained
from meshsim.pytest_plugin.ranks.harness import RankHarness
from meshsim.pytest_plugin.ranks.outcome import RankKind, RankOutcome
from meshsim.pytest_plugin.ranks.plain_asserts import explain_plain_assertion
from meshsim.pytest_plugin.ranks.representation import Representations
from meshsim.pytest_plugin.ranks.settings import RankSettings
from meshsim.pytest_plugin.ranks.values import RankValues, Resolved

# Not those by which a world ends a rank.
_ENDS = (Exception, SystemExit, KeyboardInterrupt, pytest_private.outcomes.OutcomeException)

SELF = "self"
"""The name of a test class's instance among a body's values."""


class MeshBody:
    """Called on each rank with its context.

    Returns a ``RankOutcome`` for a pass, and for an end that the rank chose itself (skip, xfail, exit), so
    that the other ranks aren't stopped for it. Anything else is raised, with the outcome on the exception.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[str, ...],
        values: RankValues,
        settings: RankSettings,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._values = values
        self._settings = settings
        self._representations = Representations()
        self.harnesses: dict[int, RankHarness] = {}
        """Those of the ranks that run, or ran, in this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        head = Rewriting(self._settings.rewritten)
        return _rebuild, (head, self._function, self._arguments, self._values, self._settings)

    def __call__(self, context: RankContext) -> RankOutcome:
        harness = RankHarness(context, self._settings)
        self.harnesses[context.rank] = harness
        kind, value = RankKind.PASSED, None
        error: BaseException | None = None
        with comparisons_explained(self._settings):
            try:
                with harness, self._values.resolve() as values:
                    value = self._run(harness, values)
            except _ENDS as raised:
                error = raised
                explain_plain_assertion(raised)
                kind = _kind_of(raised)
            outcome = harness.outcome(kind)
            if error is None:
                outcome.returned = "" if value is None else type(value).__name__
                return outcome
            if kind is not RankKind.FAILED:
                return _told(outcome, error)
            outcome.longrepr, outcome.text = self._representations.of(error, self._settings)
        outcome.bases = tuple(qualified_name(base) for base in type(error).__mro__[:-1])
        vars(error)["meshsim_carried"] = outcome
        raise error

    def _run(self, harness: RankHarness, values: Resolved) -> Any:
        harness.values = values
        for name in values.names():
            values[name]
        keywords = {name: values[name] for name in self._arguments}
        instance = values[SELF] if SELF in values and SELF not in self._arguments else None
        if instance is None:
            value = self._function(**keywords)
        elif hasattr(instance, "mesh_call"):
            value = instance.mesh_call(self._function, keywords)
        else:
            value = self._function(instance, **keywords)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        harness.check_process_group()
        return value


def _rebuild(
    head: None,
    function: Callable[..., Any],
    arguments: tuple[str, ...],
    values: RankValues,
    settings: RankSettings,
) -> MeshBody:
    return MeshBody(function, arguments, values, settings)


_KINDS: tuple[tuple[type[BaseException], RankKind], ...] = (
    (pytest_private.outcomes.Skipped, RankKind.SKIPPED),
    (pytest_private.outcomes.XFailed, RankKind.XFAILED),
    (pytest_private.outcomes.Exit, RankKind.EXIT),
)


def _kind_of(error: BaseException) -> RankKind:
    import unittest

    if isinstance(error, unittest.SkipTest):
        return RankKind.SKIPPED
    return next((kind for base, kind in _KINDS if isinstance(error, base)), RankKind.FAILED)


def _told(outcome: RankOutcome, error: BaseException) -> RankOutcome:
    outcome.reason = str(getattr(error, "msg", None) or error)
    outcome.exit_code = getattr(error, "returncode", None)
    tb = error.__traceback__
    while tb is not None:
        # The frame that called pytest.skip is the one above the last.
        if tb.tb_next is None or tb.tb_next.tb_next is None:
            outcome.location = tb.tb_frame.f_code.co_filename, tb.tb_lineno
            break
        tb = tb.tb_next
    return outcome
