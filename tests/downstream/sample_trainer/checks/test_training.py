"""The project's own tests: they use what meshsim documents, and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from sample_trainer.training import average_gradients, reference, train

import meshsim
from meshsim import strategies
from meshsim.compat import DistributedTest


@pytest.fixture(scope="module")
def problem():
    """Inputs, targets and first weights of a batch of 8."""
    generator = torch.Generator().manual_seed(3)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((8, 3), (8, 4), (3, 4))
    )


@meshsim.rank_fixture
def groups(mesh_context):
    mesh = mesh_context.device_mesh
    return {"replicas": mesh.get_group("dp"), "shards": mesh.get_group("tp")}


@pytest.mark.mesh(world_sizes=[1, 2, 4], axes=["dp", "tp"])
def test_training_equals_one_process(problem, groups, mesh_context):
    inputs, targets, weights = problem
    rows = torch.arange(8).chunk(mesh_context.dp_size)[mesh_context.dp_rank]
    columns = torch.arange(4).chunk(mesh_context.tp_size)[mesh_context.tp_rank]
    mine = train(inputs[rows], targets[rows][:, columns], weights[:, columns], steps=3, rate=0.1, **groups)
    whole = reference(inputs, targets, weights, steps=3, rate=0.1)
    torch.testing.assert_close(mine, whole[:, columns])
    meshsim.all_agree(mine, along="dp")


@pytest.mark.mesh
@settings(max_examples=6)
@given(topology=strategies.topologies(max_world_size=4, axes=["dp", "tp"]))
def test_averages_are_the_same_on_all_replicas(topology, groups, rank_context, mesh_context):
    mean = average_gradients(torch.full((2,), float(mesh_context.dp_rank)), groups["replicas"])
    assert mean.tolist() == [(mesh_context.dp_size - 1) / 2] * 2
    meshsim.all_agree(mean, along="dp")


@pytest.mark.mesh("dp=2")
@pytest.mark.xfail(reason="the ranks' batches must differ", raises=AssertionError, strict=True)
def test_equal_batches_are_noticed():
    meshsim.differs_along("dp", torch.ones(3))


class TestAsItWas(DistributedTest):
    """Written for another harness."""

    world_size = 2

    def test_world(self, tmp_path):
        import torch.distributed as dist

        assert dist.get_world_size() == 2
        (tmp_path / str(dist.get_rank())).touch()


def test_an_ordinary_test(problem):
    assert problem[0].shape == (8, 3)
