"""Mesh cases: the meshes of a bound context, live in the fake world and offline."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.distributed as dist
from cases import ranks_of

from meshlib import (
    DistributedSetup,
    MeshContext,
    MeshError,
    MeshPlan,
    OfflineMesh,
    TopologyError,
    build_distributed_setup,
    build_mesh_context,
)

FSDP = ("fsdp_replicate", "fsdp_shard", "tp")


@pytest.fixture(params=["offline", "fake"])
def on_contexts(request, on_every_rank):
    """``on_contexts(check, topology, world_size)``: runs ``check(context, rank)`` on every rank's context."""

    def run(check, topology, world_size):
        if request.param == "offline":
            contexts = [
                build_mesh_context(topology, world_size, rank=r, offline=True) for r in range(world_size)
            ]
            return [check(context, rank) for rank, context in enumerate(contexts)]
        return on_every_rank(lambda ctx: check(ctx.mesh, ctx.rank), topology, world_size=world_size)

    return run


CASES = [
    ("MESH-59", "tp=2,dp_replicate=2,dp_shard=1", 4, (2, 1, 2), (2, 1, 2), None),
    ("MESH-60", "cp=2,tp=2,dp_replicate=1,dp_shard=4", 8, (2, 2, 2), (1, 4, 2), None),
    (
        "MESH-61",
        "tp=2,ep=2,dp_replicate=2,dp_shard=2,edp_shard=2",
        8,
        (4, 1, 2),
        (2, 2, 2),
        (("edp_replicate", "edp_shard", "ep"), (2, 2, 2)),
    ),
    (
        "MESH-62",
        "tp=2,ep=4,dp_replicate=2,dp_shard=2,edp_shard=2",
        8,
        (4, 1, 2),
        (2, 2, 2),
        (("edp_shard", "ep"), (2, 4)),
    ),
    ("MESH-65", "", 1, (1, 1, 1), (1, 1, 1), None),
]


@pytest.mark.parametrize(
    ("topology", "world_size", "dense", "fsdp", "moe"), [pytest.param(*case, id=i) for i, *case in CASES]
)
def test_shapes_and_names(on_contexts, topology, world_size, dense, fsdp, moe):
    def check(context, rank):
        assert (context.device_mesh.mesh_dim_names, context.device_mesh.mesh_shape) == (
            ("dp", "cp", "tp"),
            dense,
        )
        assert context.fsdp_non_moe_mesh.mesh_dim_names == FSDP
        assert context.fsdp_non_moe_mesh.mesh_shape == fsdp
        if moe is None:
            assert context.fsdp_moe_mesh is None
        else:
            assert (context.fsdp_moe_mesh.mesh_dim_names, context.fsdp_moe_mesh.mesh_shape) == moe
        with pytest.raises(KeyError):
            context.device_mesh["ep"]
        assert context.dp_size == dense[0]
        assert context.pp_mesh.mesh_shape == (1,)
        assert not context.pp_enabled
        return context.rank

    assert on_contexts(check, topology, world_size) == list(range(world_size))


def test_slices_of_the_meshes__MESH_36(on_contexts):
    def check(context, rank):
        fsdp = context.fsdp_non_moe_mesh["fsdp_replicate", "fsdp_shard"]
        dense = context.device_mesh["dp", "tp"]
        return fsdp.mesh_shape, fsdp.rank_list, dense.mesh_shape, dense.rank_list

    returns = on_contexts(check, "tp=2,dp_replicate=2", 8)
    assert returns[0] == ((2, 2), (0, 2, 4, 6), (4, 2), tuple(range(8)))


def test_replicas_of_one_rank__MESH_37(on_contexts):
    def check(context, rank):
        part = context.fsdp_non_moe_mesh["fsdp_replicate", "fsdp_shard"]
        return part.mesh_shape, part.rank_list, part.get_coordinate()

    assert on_contexts(check, "dp_replicate=2,dp_shard=1", 2) == [
        ((2, 1), (0, 1), (0, 0)),
        ((2, 1), (0, 1), (1, 0)),
    ]


def test_stage_local_meshes__MESH_63(on_contexts):
    def check(context, rank):
        groups = {
            "dp": context.device_mesh["dp"].rank_list,
            "tp": context.device_mesh["tp"].rank_list,
            "pp": context.pp_mesh.rank_list,
        }
        places = (context.dp_rank, context.cp_rank, context.tp_rank, context.pp_rank)
        assert context.pp_enabled
        return context.device_mesh.rank_list, groups, places

    returns = on_contexts(check, "tp=2,pp=2,dp_replicate=1,dp_shard=2", 8)
    assert [ranks for ranks, _, _ in returns] == [(0, 1, 2, 3)] * 4 + [(4, 5, 6, 7)] * 4
    assert returns[5][1] == {"dp": (5, 7), "tp": (4, 5), "pp": (1, 5)}
    assert returns[5][2] == (0, 0, 1, 1)


def test_a_context_without_meshes__MESH_64():
    context = MeshContext(dp_size=2, cp_size=2, tp_size=2)
    assert context.dp_cp_mesh is None
    assert context.cp_mesh is None
    assert context.pp_mesh is None
    assert context.device_mesh is None
    with pytest.raises(MeshError, match="build_meshes"):
        _ = context.plan
    with pytest.raises(MeshError, match="build_meshes"):
        _ = context.rank
    context.close()


def test_one_dimensional_meshes(on_contexts):
    def check(context, rank):
        assert context.dp_cp_mesh.mesh_dim_names == ("dp_cp",)
        assert context.cp_mesh.mesh_dim_names == ("cp",)
        assert context.pp_mesh.mesh_dim_names == ("pp",)
        return context.dp_cp_mesh.rank_list, context.cp_mesh.rank_list, context.pp_mesh.rank_list

    returns = on_contexts(check, "dp=2,cp=2,tp=2,pp=2", 16)
    assert returns[13] == (ranks_of("9,11,13,15"), (13, 15), (5, 13))


def test_no_cp_mesh_at_cp_1(on_contexts):
    assert on_contexts(lambda context, rank: context.cp_mesh, "dp=2", 2) == [None, None]


def test_rank_fields(on_contexts):
    def check(context, rank):
        plan = context.plan
        place = plan.coordinate(rank)
        assert (context.dp_rank, context.cp_rank, context.tp_rank, context.pp_rank) == tuple(
            place[axis] for axis in ("dp", "cp", "tp", "pp")
        )
        return context.ep_rank

    assert on_contexts(check, "tp=2,pp=2,ep=2", 8) == [0, 1] * 4


def test_every_spelling_of_building(on_every_rank):
    """A plan, sizes and the old name of the call give the same meshes."""

    def check(ctx):
        plan = MeshPlan.build("dp=2,tp=2", 4)
        texts = set()
        for context in (
            MeshContext.from_plan(plan).build_meshes("cpu", 4),
            MeshContext(tp_size=2).build_meshs("cpu", 4),
            MeshContext(dp_size=2, tp_size=2).build_meshes("cpu", 4),
            build_mesh_context("tp=2"),
            build_mesh_context(plan.dims, 4, device_type="cpu", rank=ctx.rank),
        ):
            with context:
                assert context.plan == plan
                assert (context.dp_size, context.dp_shard_size, context.edp_shard_size) == (2, 2, 1)
                texts.add((context.device_mesh.rank_list, context.dp_rank, context.tp_rank))
        (found,) = texts
        return found

    assert on_every_rank(check, "dp=4")[3] == ((0, 1, 2, 3), 1, 1)


def test_order_and_scope_reach_the_meshes(on_every_rank):
    def check(ctx):
        options = {"order": ("tp", "dp", "cp", "pp"), "ep_scope": "replica"}
        with build_mesh_context("dp=2,dp_replicate=2,tp=2,pp=2,ep=2", 8, **options) as context:
            plan = context.plan
            assert (plan.order, plan.ep_scope) == (("tp", "dp", "cp", "pp"), "replica")
            for mesh in (context.device_mesh, context.fsdp_non_moe_mesh, context.fsdp_moe_mesh):
                for axis in mesh.mesh_dim_names:
                    assert tuple(dist.get_process_group_ranks(mesh.get_group(axis))) == plan.group(
                        axis, ctx.rank
                    )
                assert tuple(mesh.mesh.flatten().tolist()) == mesh.rank_list

    on_every_rank(check, "dp=8")


def test_fsdp_axes_that_are_unevenly_spaced(on_every_rank):
    """With tp between dp and cp a shard group can have no even spacing; the mesh has its ranks all the
    same.
    """

    def check(ctx):
        order = ("pp", "dp", "tp", "cp")
        with build_mesh_context("dp=2,cp=3,tp=2,dp_replicate=3", 12, order=order) as context:
            plan = context.plan
            mesh = context.fsdp_non_moe_mesh
            assert mesh.mesh_shape == (3, 2, 2)
            for axis in mesh.mesh_dim_names:
                assert tuple(dist.get_process_group_ranks(mesh.get_group(axis))) == plan.group(axis, ctx.rank)
                assert mesh[axis].rank_list == plan.group(axis, ctx.rank)
            assert tuple(mesh.mesh.flatten().tolist()) == mesh.rank_list
            return plan.group("fsdp_shard", ctx.rank)

    returns = on_every_rank(check, "dp=12")
    assert returns[0] == (0, 1)
    assert returns[2] == returns[6] == (2, 6)


@pytest.mark.parametrize("as_mapping", [True, False])
def test_distributed_setup(on_every_rank, as_mapping):
    settings = {"tp_size": 2, "ep_size": 2, "cp_size": 1, "pp_size": 1, "sequence_parallel": True}

    def check(ctx):
        accelerator = settings if as_mapping else SimpleNamespace(**settings)
        setup = build_distributed_setup(
            accelerator,
            dp_shard_size=2,
            dp_replicate_size=2,
            world_size=8,
            edp_shard_size=2,
            device_type="cpu",
        )
        assert isinstance(setup, DistributedSetup)
        assert setup.strategy_config is None
        with setup.mesh_context as context:
            assert context.sequence_parallel
            assert not context.loss_parallel
            assert context.fsdp_moe_mesh.mesh_shape == (2, 2, 2)
            assert context.fsdp_non_moe_mesh.mesh_shape == (2, 2, 2)
            return context.device_mesh.get_group("tp").size()

    assert on_every_rank(check, "dp=8") == [2] * 8


def test_distributed_setup_offline():
    setup = build_distributed_setup({"tp_size": 2}, dp_shard_size=1, dp_replicate_size=2, world_size=4)
    assert isinstance(setup.mesh_context.device_mesh, OfflineMesh)
    assert setup.mesh_context.device_mesh.mesh_shape == (2, 1, 2)
    with pytest.raises(TopologyError, match="8 % 3"):
        build_distributed_setup({"pp_size": 3}, dp_shard_size=None, dp_replicate_size=None, world_size=8)
    with pytest.raises(TopologyError, match="accelerator"):
        build_distributed_setup(None, dp_shard_size=1, dp_replicate_size=1, world_size=1)


@pytest.mark.parametrize("name", ["sequence_parallel", "loss_parallel"])
@pytest.mark.parametrize("value", ["false", "True", 1, 0])
def test_flags_are_true_or_false(name, value):
    sizes = {"dp_shard_size": None, "dp_replicate_size": None, "world_size": 2}
    for build in (
        lambda: build_distributed_setup({name: value}, **sizes),
        lambda: build_distributed_setup(SimpleNamespace(**{name: value}), **sizes),
        lambda: build_mesh_context("dp=2", offline=True, **{name: value}),
    ):
        with pytest.raises(TopologyError, match=f"{name} must be True or False, got {value!r}"):
            build()
    assert build_distributed_setup({name: None}, **sizes).mesh_context.sequence_parallel is False


def test_no_process_group():
    with pytest.raises(MeshError, match="init_process_group"):
        build_mesh_context("dp=2", 2)
    context = MeshContext(tp_size=2).build_meshes("cpu", 4)
    assert isinstance(context.device_mesh, OfflineMesh)
    with pytest.raises(MeshError, match="init_process_group"):
        context.device_mesh.get_group("tp")


def test_wrong_rank_and_world(on_every_rank):
    def world(ctx):
        with pytest.raises(MeshError, match=r"planned for 4 ranks.* world has 2"):
            build_mesh_context("dp=4", 4)
        plan = MeshPlan.build("dp=4", 4)
        with pytest.raises(MeshError, match="4 ranks"):
            MeshContext.from_plan(plan).build_meshes("cpu", 2)

    on_every_rank(world, "dp=2")


def test_rank_of_another(on_every_rank):
    def check(ctx):
        with pytest.raises(MeshError, match=r"rank=1 .* this is rank 0"):
            build_mesh_context("dp=1", rank=1)

    on_every_rank(check, "dp=1")
