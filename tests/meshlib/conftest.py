"""What the meshlib tests share: running a function on every rank of a world."""

from __future__ import annotations

import pytest

import meshsim


def returns_of(scenario, topology, *, backend="fake", **options):
    """What each rank returned; the test fails with the verdict when a rank failed."""
    result = meshsim.run(scenario, topology, backend=backend, timeout=120, **options)
    if not result.ok:
        failures = [rank.failure.traceback for rank in result.ranks if rank.failure]
        pytest.fail("\n".join([str(result.verdict), *failures[:1]]))
    return result.returns


@pytest.fixture
def on_every_rank():
    """``on_every_rank(scenario, "dp=2,tp=2")``: the returns by rank, in the fake world unless
    ``backend=`` is given.
    """
    return returns_of
