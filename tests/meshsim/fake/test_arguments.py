"""Calls that gloo refuses are refused on the rank that makes them, in words, and nobody else is blamed."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import meshsim

ones, zeros = torch.ones, torch.zeros
WRONG_ON_EVERY_RANK = {
    "gather_into_five": lambda: dist.all_gather_into_tensor(zeros(5), ones(2)),
    "gather_into_other_dtype": lambda: dist.all_gather_into_tensor(zeros(4, dtype=torch.int32), ones(2)),
    "gather_stacked": lambda: dist.all_gather_into_tensor(zeros(2, 3), ones(3)),
    "all_gather_other_shape": lambda: dist.all_gather([zeros(2, 2), zeros(2, 2)], ones(4)),
    "all_gather_one_output": lambda: dist.all_gather([zeros(1)], ones(1)),
    "all_gather_three_outputs": lambda: dist.all_gather([zeros(1), zeros(1), zeros(1)], ones(1)),
    "reduce_scatter_five": lambda: dist.reduce_scatter_tensor(zeros(2), ones(5)),
    "reduce_scatter_one_input": lambda: dist.reduce_scatter(zeros(1), [ones(1)]),
    "reduce_scatter_small_inputs": lambda: dist.reduce_scatter(zeros(2), [ones(1), ones(1)]),
    "all_to_all_one": lambda: dist.all_to_all([zeros(1)], [ones(1)]),
    "splits_sum": lambda: dist.all_to_all_single(zeros(4), ones(4), [1, 1], [1, 1]),
    "three_splits": lambda: dist.all_to_all_single(zeros(4), ones(4), [1, 1, 2], [1, 1, 2]),
    "odd_rows": lambda: dist.all_to_all_single(zeros(3), ones(3)),
}


@pytest.mark.parametrize("name", WRONG_ON_EVERY_RANK)
def test_every_rank_is_told(name):
    def scenario(ctx):
        with pytest.raises(RuntimeError, match=f"on rank {ctx.rank}: "):
            WRONG_ON_EVERY_RANK[name]()
        total = ones(1)
        dist.all_reduce(total)
        return total.item()

    result = meshsim.run(scenario, "dp=2")
    assert result.returns == [2.0, 2.0], result.verdict


@pytest.mark.parametrize(
    "call",
    [
        lambda rank: dist.scatter(zeros(1), [ones(1)] if rank == 0 else None, src=0),
        lambda rank: dist.scatter(zeros(1), [ones(2), ones(2)] if rank == 0 else None, src=0),
        lambda rank: dist.gather(ones(1), [zeros(1)] if rank == 0 else None, dst=0),
    ],
    ids=["scatter_one", "scatter_large", "gather_one"],
)
def test_the_root_that_gave_a_wrong_list_is_the_culprit(call):
    result = meshsim.run(lambda ctx: call(ctx.rank), "dp=2")
    assert result.verdict.kind == "raised"
    assert result.verdict.ranks == (0,)


def test_an_error_isnt_lost_in_cleanup_that_communicates():
    def scenario(ctx):
        try:
            if ctx.rank == 0:
                raise ZeroDivisionError("the cause")
            dist.all_reduce(ones(1))
        finally:
            dist.barrier()

    result = meshsim.run(scenario, "dp=3")
    assert not result.ok
    assert result.verdict.ranks == (0,)
    assert "rank 0 was handling ZeroDivisionError of test_arguments.py:" in result.verdict.summary
    assert "the cause" in result.verdict.summary


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_monitored_barrier(backend):
    def scenario(ctx):
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        return ctx.rank

    assert meshsim.run(scenario, "dp=2", backend=backend).returns == [0, 1]
