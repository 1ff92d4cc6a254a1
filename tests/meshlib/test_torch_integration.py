"""Live meshes under torch's own parallelism: FSDP2, tensor parallelism, DTensor, distributed checkpoints."""

from __future__ import annotations

import copy
import pickle
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from meshlib import MeshPlan, build_mesh_context, init_device_mesh
from meshlib.live import LiveMesh

BACKENDS = ["fake", "gloo"]


class Weight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(64.0).reshape(16, 4))

    def forward(self, x):
        return x @ self.weight.T


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.up = nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def train_step(model, x):
    """One SGD step; the loss is the sum of squares."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(x).square().sum().backward()
    optimizer.step()


def expected_weights(batches):
    """The same step in one process: FSDP averages the gradients of its ranks."""
    model = Mlp()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for x in batches:
        model(x).square().sum().backward()
    for parameter in model.parameters():
        parameter.data -= 0.01 * parameter.grad / len(batches)
    return {name: parameter.data for name, parameter in model.named_parameters()}


def batch(number):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def assert_weights(model, expected):
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.full_tensor(), expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_placements_of_a_sharded_weight__MESH_38(on_every_rank, backend):
    def check(ctx):
        flat = Weight()
        fully_shard(flat, mesh=ctx.mesh.fsdp_non_moe_mesh["fsdp_shard"])
        assert flat.weight.placements == (Shard(0),)
        assert tuple(flat.weight.to_local().shape) == (2, 4)
        with build_mesh_context("cp=2,dp_replicate=2") as context:
            hybrid = Weight()
            fully_shard(hybrid, mesh=context.fsdp_non_moe_mesh["fsdp_replicate", "fsdp_shard"])
            assert hybrid.weight.placements == (Replicate(), Shard(0))
            assert tuple(hybrid.weight.to_local().shape) == (4, 4)
            assert torch.equal(hybrid.weight.full_tensor(), torch.arange(64.0).reshape(16, 4))
        return flat.weight.to_local()[0, 0].item()

    assert on_every_rank(check, "cp=2", world_size=8, backend=backend) == [8.0 * rank for rank in range(8)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("topology", ["dp=4", "dp=4,dp_replicate=2", "dp=2,cp=2,pp=2", "dp=4,dp_replicate=4"])
def test_fully_shard(on_every_rank, backend, topology):
    def check(ctx):
        mesh = ctx.mesh.fsdp_non_moe_mesh
        hybrid = ctx.mesh.dp_replicate_size > 1
        model = Mlp()
        fully_shard(model, mesh=mesh["fsdp_replicate", "fsdp_shard"] if hybrid else mesh["fsdp_shard"])
        group = ctx.mesh.plan.group("dp_cp", ctx.rank)
        train_step(model, batch(ctx.rank))
        assert_weights(model, expected_weights([batch(rank) for rank in group]))

    on_every_rank(check, topology, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tp_mesh_of", ["fsdp_non_moe_mesh", "device_mesh"])
@pytest.mark.parametrize("topology", ["dp=2,tp=2", "dp=4,dp_replicate=2,tp=2", "dp=2,tp=2,pp=2"])
def test_fully_shard_over_tensor_parallel(on_every_rank, backend, tp_mesh_of, topology):
    """Slices of different views combine: the ranks of a stage are the root of all of them."""

    def check(ctx):
        model = Mlp()
        tp = getattr(ctx.mesh, tp_mesh_of)["tp"]
        parallelize_module(model, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        mesh = ctx.mesh.fsdp_non_moe_mesh
        hybrid = ctx.mesh.dp_replicate_size > 1
        fully_shard(model, mesh=mesh["fsdp_replicate", "fsdp_shard"] if hybrid else mesh["fsdp_shard"])
        group = ctx.mesh.plan.group("dp_cp", ctx.rank)
        train_step(model, batch(ctx.mesh.dp_rank))
        assert_weights(model, expected_weights([batch(place) for place in range(len(group))]))

    on_every_rank(check, topology, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dtensor_redistribution(on_every_rank, backend):
    def check(ctx):
        full = torch.arange(96.0).reshape(12, 8)
        mesh = ctx.mesh.device_mesh["dp", "tp"]
        tensor = distribute_tensor(full, mesh, [Shard(0), Shard(1)])
        dp, tp = mesh.get_coordinate()
        assert torch.equal(tensor.to_local(), full[6 * dp : 6 * dp + 6, 4 * tp : 4 * tp + 4])
        for placements in ([Replicate(), Replicate()], [Shard(1), Replicate()], [Replicate(), Shard(0)]):
            assert torch.equal(tensor.redistribute(mesh, placements).full_tensor(), full)
        flat = ctx.mesh.dp_cp_mesh
        assert torch.equal(distribute_tensor(full, flat, [Shard(0)]).full_tensor(), full)
        product = tensor @ distribute_tensor(full.T.contiguous(), mesh, [Replicate(), Shard(0)])
        assert torch.equal(product.full_tensor(), full @ full.T)

    on_every_rank(check, "dp=2,tp=2", backend=backend)


def test_uneven_shards_of_each_rank(on_every_rank):
    """torch caches how to redistribute, by mesh and placements: ranks of one process must not share that."""

    def check(ctx):
        full = torch.arange(35.0).reshape(7, 5)
        mesh = ctx.mesh.device_mesh["dp", "tp"]
        choices = ([Shard(0), Shard(0)], [Shard(0), Shard(1)], [Shard(1), Shard(0)], [Replicate(), Shard(1)])
        for before in choices:
            tensor = distribute_tensor(full, mesh, before)
            for after in choices:
                assert torch.equal(tensor.redistribute(mesh, after).full_tensor(), full)

    on_every_rank(check, "dp=2,tp=3")


@pytest.mark.parametrize(
    "order", [("pp", "dp", "cp", "tp"), ("pp", "tp", "dp", "cp"), ("tp", "dp", "pp", "cp")]
)
def test_dtensor_in_other_rank_orders(on_every_rank, order):
    def check(ctx):
        full = torch.arange(128.0).reshape(16, 8)
        with build_mesh_context("dp=2,cp=2,tp=2,ep=4,edp_shard=2", 8, order=order) as context:
            for mesh in (context.device_mesh, context.fsdp_non_moe_mesh, context.fsdp_moe_mesh):
                placements = [Shard(0)] * (mesh.ndim - 1) + [Shard(1)]
                assert torch.equal(distribute_tensor(full, mesh, placements).full_tensor(), full)

    on_every_rank(check, "dp=8")


@pytest.mark.parametrize("backend", BACKENDS)
def test_distributed_checkpoint(on_every_rank, backend, tmp_path):
    def check(ctx):
        model = Mlp()
        mesh = ctx.mesh.fsdp_non_moe_mesh
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["fsdp_shard"])
        expected = {name: value.full_tensor().clone() for name, value in model.named_parameters()}
        state = get_model_state_dict(model)
        dcp.save(state, checkpoint_id=tmp_path / "checkpoint")
        for value in state.values():
            value.zero_()
        dcp.load(state, checkpoint_id=tmp_path / "checkpoint")
        for name, value in state.items():
            assert torch.equal(value.full_tensor(), expected[name])

    on_every_rank(check, "dp=2,tp=2", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_meshes_are_torchs_own(on_every_rank, backend):
    def check(ctx):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert isinstance(mesh, DeviceMesh)
        theirs = DeviceMesh.from_group(
            mesh.get_all_groups(), "cpu", mesh=[[0, 1], [2, 3]], mesh_dim_names=("dp", "tp")
        )
        ours, official = vars(mesh), vars(theirs)
        own = {"_root", "_axes", "_own_groups", "_shown"}
        assert set(ours) - own == set(official)
        for name in set(official) - {"_pg_registry", "_rank_map", "_thread_id", "_hash"}:
            assert ours[name] == official[name], name
        assert torch.equal(ours["_rank_map"], official["_rank_map"])
        assert torch.equal(mesh.mesh, theirs.mesh)
        assert (mesh.size(), mesh.size(0), mesh.size("tp")) == (theirs.size(), theirs.size(0), 2)
        assert str(mesh) == str(theirs)
        for axis in ("dp", "tp"):
            assert torch.equal(mesh[axis].mesh, theirs[axis].mesh)
            assert mesh[axis].get_group() is theirs[axis].get_group()
            assert vars(mesh[axis])["_layout"] == vars(theirs[axis])["_layout"]

    on_every_rank(check, "dp=4", backend=backend)


def test_saving_dtensors_and_copying_meshes(on_every_rank):
    def check(ctx):
        mesh = ctx.mesh.device_mesh["dp", "tp"]
        tensor = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0), Shard(1)])
        with tempfile.TemporaryFile() as file:
            torch.save({"weight": tensor}, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=True)["weight"]
        assert isinstance(loaded, DTensor)
        assert torch.equal(loaded.full_tensor(), tensor.full_tensor())
        for again in (pickle.loads(pickle.dumps(mesh)), copy.deepcopy(mesh)):
            assert again == mesh
            assert isinstance(again, LiveMesh)
            assert again.get_group("tp") is mesh.get_group("tp")
            assert again.get_local_rank("dp") == mesh.get_local_rank("dp")
            assert again.rank_list == mesh.rank_list

    on_every_rank(check, "dp=2,tp=2", backend="gloo")


def test_meshes_follow_the_default_device(on_every_rank):
    def check(ctx):
        with torch.device("meta"), build_mesh_context("dp=2,tp=2") as context:
            mesh = context.device_mesh
            return mesh.mesh.flatten().tolist(), mesh["tp"].mesh.tolist(), mesh["dp", "tp"].rank_list

    returns = on_every_rank(check, "dp=4")
    assert returns[3] == ([0, 1, 2, 3], [2, 3], (0, 1, 2, 3))


@pytest.mark.long
@pytest.mark.parametrize("world_size", [1, 64, 512, 4096])
def test_offline_meshes_equal_live_ones__MESH_81(on_every_rank, world_size):
    topology = {
        1: "dp=1",
        64: "dp=4,cp=2,tp=4,pp=2,ep=4",
        512: "dp=16,cp=2,tp=8,pp=2,ep=16,dp_replicate=4",
        4096: "dp=32,cp=4,tp=8,pp=4,ep=32,dp_replicate=2",
    }[world_size]

    def check(ctx):
        offline = build_mesh_context(topology, world_size, rank=ctx.rank, offline=True)
        for name in ("device_mesh", "fsdp_non_moe_mesh", "fsdp_moe_mesh", "pp_mesh", "dp_cp_mesh", "cp_mesh"):
            here, there = getattr(ctx.mesh, name), getattr(offline, name)
            if here is None:
                assert there is None
                continue
            assert (here.mesh_dim_names, here.mesh_shape) == (there.mesh_dim_names, there.mesh_shape)
            assert (here.rank_list, here.get_coordinate()) == (there.rank_list, there.get_coordinate())
            for axis in here.mesh_dim_names if ctx.rank % 16 in (0, 5) else ():
                assert here[axis].rank_list == there[axis].rank_list
                assert tuple(dist.get_process_group_ranks(here.get_group(axis))) == there.group(
                    axis, ctx.rank
                )

    on_every_rank(check, topology)


@pytest.mark.long
def test_offline_meshes_equal_the_plan_at_4096_ranks__MESH_81():
    topology = "dp=32,cp=4,tp=8,pp=4,ep=32,dp_replicate=2"
    plan = MeshPlan.build(topology, 4096)
    for rank in range(0, 4096, 61):
        context = build_mesh_context(topology, 4096, rank=rank, offline=True)
        for mesh in (context.device_mesh, context.fsdp_non_moe_mesh, context.fsdp_moe_mesh):
            for axis in mesh.mesh_dim_names:
                assert mesh.group(axis, rank) == plan.group(axis, rank)
