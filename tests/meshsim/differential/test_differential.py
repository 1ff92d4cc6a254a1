"""The fake world against real gloo: random correct programs give the same results in both, and no finding.

Known differences, all of them on purpose:

* Sums, averages and products of floating-point and complex numbers may differ in the last bits: gloo's order
  of reduction depends on the number of ranks and elements, the fake world's is the ranks' (``TOLERANCE``).
* A bool that gloo has summed by the functional call can have any byte but 0 for True; compared is the truth.
* After ``reduce``, ranks other than the destination find scratch values with gloo and their own input in the
  fake world. Neither is promised.
* Non-contiguous tensors of ``all_reduce``, ``broadcast``, ``reduce`` and ``scatter``: gloo corrupts them, the
  fake world computes on what the user sees and reports the hazard.
* Functional ``reduce_scatter_tensor`` with PRODUCT on complex numbers: gloo is silently wrong, the fake world
  refuses it.
* An ``AVG`` that gloo doesn't have raises there after communicating, in the fake world before.
* Of receives from any source that could be matched with several sends, gloo takes what comes first, the fake
  world one drawn from the seed.

The programs here steer clear of the last five.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from collective_programs import COMPLEX, FLOATS, OPERATIONS, Program, Step, programs, run_programs
from hypothesis import HealthCheck, Phase, given, settings

import meshsim

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

PROGRAMS_EACH = 7
"""For each operation and world size: 27 operations, three sizes, 567 programs."""

INEXACT = (*FLOATS, *COMPLEX)
TOLERANCE = 16
"""Of floating-point results, relative and absolute, in units of the dtype's last place at 1."""


def drawn(world_size: int, first: str, count: int) -> list[Program]:
    """The same programs at every run."""
    found: list[Program] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(world_size, first))
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return found[:count]


def outcome(batch: list[Program], backend: str, seed: int = 0) -> list[Any]:
    """Results by rank and program. The run must pass without any finding."""
    size = batch[0].world_size
    result = meshsim.run(
        run_programs, f"dp={size}", backend=backend, seed=seed, timeout=120, params={"programs": batch}
    )
    assert result.ok, _blame(batch, backend, result)
    assert result.verdict.warnings == []
    return result.returns


def _blame(batch: list[Program], backend: str, result: meshsim.RunResult) -> str:
    """The first program that fails by itself, where one does."""
    for program in batch if backend == "fake" else ():
        alone = meshsim.run(run_programs, f"dp={program.world_size}", params={"programs": [program]})
        if not alone.ok:
            return f"{alone.verdict}\n{program}"
    return str(result.verdict)


def assert_same(batch: list[Program], fake: list[Any], gloo: list[Any]) -> None:
    for number, program in enumerate(batch):
        for rank in range(program.world_size):
            for at, step in enumerate(program.steps):
                ours, theirs = fake[rank][number][at], gloo[rank][number][at]
                if ours != theirs:
                    where = f"rank {rank}, step {at} of {program}"
                    assert _may_differ(step), f"{where}: fake {ours}, gloo {theirs}"
                    _assert_close(ours, theirs, where)


def _may_differ(step: Step) -> bool:
    """Whether the last bits may: by the order of reduction, or by dividing instead of multiplying."""
    return bool(step.reduce_op) and (step.fractions or step.reduce_op == "AVG") and step.dtype in INEXACT


def _assert_close(ours: list[Any], theirs: list[Any], where: str) -> None:
    for (dtype, shape, mine), (other_dtype, other_shape, other) in zip(ours, theirs, strict=True):
        assert (dtype, shape) == (other_dtype, other_shape), where
        kind = getattr(torch, dtype)
        near = TOLERANCE * torch.finfo(kind.to_real()).eps
        torch.testing.assert_close(
            torch.frombuffer(bytearray(mine), dtype=kind),
            torch.frombuffer(bytearray(other), dtype=kind),
            rtol=near,
            atol=near,
            msg=lambda text: f"{where}: {text}",
        )


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_programs_give_what_gloo_gives(world_size: int) -> None:
    batch = [program for first in OPERATIONS for program in drawn(world_size, first, PROGRAMS_EACH)]
    gloo = outcome(batch, "gloo")
    for seed in (0, 1):
        assert_same(batch, outcome(batch, "fake", seed), gloo)


def test_shuffled_reductions_give_what_gloo_gives_but_for_the_last_bits() -> None:
    batch = [program for first in ("all_reduce", "reduce_scatter") for program in drawn(4, first, 10)]
    plain = outcome(batch, "fake")
    shuffled = meshsim.run(
        run_programs, "dp=4", params={"programs": batch}, shuffle_reductions=True, seed=1
    ).returns
    assert_same(batch, shuffled, plain)


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_many_more_programs(world_size: int) -> None:
    for first in OPERATIONS:
        batch = drawn(world_size, first, 60)
        assert_same(batch, outcome(batch, "fake"), outcome(batch, "gloo"))


@pytest.mark.long
def test_programs_one_by_one() -> None:
    """New ones at every run, each by itself, so that a failing one is made small."""

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs(3))
    def check(program: Program) -> None:
        assert_same([program], outcome([program], "fake"), outcome([program], "gloo"))

    check()
