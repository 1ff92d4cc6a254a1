"""Hypothesis in mesh tests: examples are drawn in pytest's process, and each is one run on all ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from meshsim.errors import UsageError
from meshsim.pytest_plugin.marker import Case

DRAWN = Case("", 0, "drawn")
"""Stands for the topology of a test that draws it."""


def is_property_test(function: Any) -> bool:
    """Whether a test function is decorated with ``@given``; asks only where Hypothesis has been imported."""
    return "hypothesis" in sys.modules and bool(getattr(function, "is_hypothesis_test", False))


def inner_test(function: Any) -> Callable[..., Any]:
    """The function under ``@given``."""
    inner: Callable[..., Any] = function.hypothesis.inner_test
    while hasattr(inner, "meshsim_runs"):
        inner = inner.meshsim_runs
    return inner


def prepare(function: Any) -> None:
    """Switch off what Hypothesis assumes of a test in one process.

    Each example is a run of its own, with fresh copies of every fixture's value, and takes longer than
    the usual deadline.
    """
    from hypothesis import HealthCheck, settings

    target = getattr(function, "__func__", function)
    # Of a test class that goes by value: what Hypothesis has built around the function stays here.
    vars(target)["meshsim_sent_as"] = inner_test(function)
    usual = settings()
    given = getattr(target, "_hypothesis_internal_use_settings", usual)
    deadline = None if given.deadline == usual.deadline else given.deadline
    vars(target)["_hypothesis_internal_use_settings"] = settings(
        parent=given,
        deadline=deadline,
        suppress_health_check={
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
            *given.suppress_health_check,
        },
    )


def run_examples(item: pytest.Function, run_one: Callable[[Mapping[str, Any]], None]) -> None:
    """Have Hypothesis call ``run_one`` with the drawn values and the fixtures' values, by name."""
    import inspect

    handle = item.obj.hypothesis
    inner = handle.inner_test
    names = list(inspect.signature(inner).parameters)

    def one_example(*arguments: Any, **keywords: Any) -> None:
        run_one({**dict(zip(names, arguments, strict=False)), **keywords})

    vars(one_example)["meshsim_runs"] = inner
    one_example.__name__ = inner.__name__
    handle.inner_test = one_example
    try:
        item.obj(**{name: item.funcargs[name] for name in item._fixtureinfo.argnames})
    finally:
        handle.inner_test = inner


def drawn_case(values: Mapping[str, Any]) -> Case:
    """The topology that an example asks for."""
    from meshlib import MeshPlan, ParallelDims

    for name in ("topology", "plan", "program"):
        value = values.get(name)
        value = getattr(value, "topology", None) if name == "program" else value
        if isinstance(value, MeshPlan):
            return Case(value.topology, value.world_size, "drawn")
        if isinstance(value, str | ParallelDims):
            dims = ParallelDims.of(value)
            return Case(str(dims), dims.own_world_size(), "drawn")
    raise UsageError(
        "@pytest.mark.mesh names no topology and the test draws none; draw a topology or a plan, or write "
        "@pytest.mark.mesh('dp=2,tp=2')"
    )
