"""The compatibility classes are tried on suites as their users write them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import pytest

# pytester forgets what an inner run in this process has imported, and torch can't be imported twice.
for _package in ("checker", "compat", "pytest_plugin", "reports", "worlds.fake", "worlds.gloo"):
    _module = importlib.import_module(f"meshsim.{_package}")
    for _found in pkgutil.walk_packages(_module.__path__, f"{_module.__name__}."):
        importlib.import_module(_found.name)


@pytest.fixture(params=["fake", "gloo"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run_suite(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run the text of one test module."""

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_suite=source)
        off = ("randomly", "asyncio", "cacheprovider", "unraisableexception")
        return pytester.runpytest_inprocess(*(w for name in off for w in ("-p", f"no:{name}")), *options)

    return run
