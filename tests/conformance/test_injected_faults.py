"""Every fault, in every world that runs here: the verdict names the rank it was injected on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import meshsim
from meshsim.errors import UsageError
from meshsim.verdict import VerdictKind as K


def steps(ctx):
    """Three sums that every rank checks: 4 ranks of ones give 4."""
    for _ in range(3):
        x = torch.ones(4)
        dist.all_reduce(x)
        assert x.tolist() == [4.0] * 4
    return True


@pytest.mark.parametrize("backend", ["fake", "gloo"])
@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        ("rank=2:crash@all_reduce#2", (K.KILLED, K.EXITED)),
        ("rank=2:raise@all_reduce#2", (K.RAISED,)),
        ("rank=2:hang@all_reduce#2", (K.STUCK, K.DEADLOCK)),
        ("rank=2:skip@all_reduce#2", (K.RAISED, K.DEADLOCK)),
        ("rank=2:duplicate@all_reduce#2", (K.RAISED, K.DEADLOCK, K.EXTRA_CALL)),
        ("rank=2:bitflip@all_reduce#2", (K.RAISED,)),
        ("rank=2:nan@all_reduce#2", (K.RAISED,)),
        ("dp=1,tp=0:raise@*#3", (K.RAISED,)),
    ],
)
def test_the_verdict_names_the_rank(fault, kinds, backend):
    timeout = 3 if ":hang" in fault and backend == "gloo" else 30
    result = meshsim.run(steps, "dp=2,tp=2", backend=backend, faults=[fault], timeout=timeout)
    assert result.verdict.kind in kinds, result.verdict
    assert result.verdict.ranks == (2,)
    assert "rank 2" in result.verdict.summary


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_a_delay_is_only_a_delay(backend):
    result = meshsim.run(steps, "dp=2,tp=2", backend=backend, faults=["tp=1:delay=0.01@*"], timeout=30)
    assert result.ok, result.verdict
    assert {entry["rank"] for entry in result.verdict.details["faults"]} == {1, 3}


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_a_fault_that_never_fires_is_a_warning(backend):
    result = meshsim.run(
        steps, "dp=2,tp=2", backend=backend, faults=["rank=1:crash@all_reduce#4"], timeout=30
    )
    assert result.ok
    (warning,) = result.verdict.warnings
    assert (warning.kind, warning.ranks) == (K.FAULT_NOT_FIRED, (1,))
    assert "rank=1:crash@all_reduce#4 never fired" in warning.summary
    assert "rank 1 made 3 all_reduce calls" in warning.summary


@pytest.mark.parametrize("fault", ["rank=9:crash@*", "rank=1:crash", "tp=5:nan@*"])
def test_a_wrong_fault_is_refused_before_the_run(fault):
    with pytest.raises(UsageError):
        meshsim.run(steps, "dp=2,tp=2", faults=[fault])
