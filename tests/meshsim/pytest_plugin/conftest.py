"""Each test here writes a small suite and runs pytest on it, in this process unless it says otherwise."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import pytest

import meshsim

pytest_plugins = ["pytester"]

WORLDS = ("fake", "gloo")


def _import_all_of(package: str) -> None:
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)


# pytester forgets whatever an inner run in this process has imported: torch can't be imported twice, and the
# pool of workers is to be one.
_import_all_of(meshsim.__name__)
importlib.import_module("hypothesis")


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
