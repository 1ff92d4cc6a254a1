"""Each test here writes a small suite and runs pytest on it, in this process unless it says otherwise."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import pytest

WORLDS = ("fake", "gloo")


_NEEDED = ("checker", "compat", "pytest_plugin", "reports", "worlds.fake", "worlds.gloo")


def import_packages(*packages: str) -> None:
    """Import whole packages, and torch.

    pytester forgets whatever an inner run in this process has imported: torch can't be imported twice, and
    the pool of workers is to be one.
    """
    for package in packages:
        module = importlib.import_module(package)
        for found in pkgutil.walk_packages(module.__path__, f"{package}."):
            importlib.import_module(found.name)


import_packages(*(f"meshsim.{name}" for name in _NEEDED))
for _name in ("hypothesis", "torch", "meshsim.asserting", "meshsim.runner", "meshsim.strategies"):
    importlib.import_module(_name)


@pytest.fixture(params=WORLDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def without(*plugins: str) -> list[str]:
    """pytest's options that switch plugins off. Collecting garbage after each run costs a second each."""
    return [word for plugin in (*plugins, "unraisableexception") for word in ("-p", f"no:{plugin}")]


@pytest.fixture
def run_suite(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run the text of one test module; further modules by name."""

    def run(source: str, *options: str, **modules: str) -> pytest.RunResult:
        pytester.makepyfile(test_suite=source, **modules)
        return pytester.runpytest_inprocess(
            *(
                "-p",
                "no:randomly",
                "-p",
                "no:asyncio",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:unraisableexception",
            ),
            *options,
        )

    return run
