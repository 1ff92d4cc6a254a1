"""Runs in the fake world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import meshsim


@pytest.fixture
def passed() -> Callable[..., list[Any]]:
    """Runs a scenario; it must pass without a finding. What the ranks returned."""

    def run(scenario: Callable[..., Any], topology: str, **options: Any) -> list[Any]:
        result = meshsim.run(scenario, topology, **{"timeout": 60, **options})
        shown = "\n".join(rank.failure.traceback for rank in result.ranks if rank.failure)
        assert result.ok, f"{result.verdict}\n{shown}"
        assert result.verdict.warnings == []
        return result.returns

    return run
