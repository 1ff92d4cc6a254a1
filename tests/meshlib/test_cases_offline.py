"""Mesh cases: meshes without process groups."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from cases import refusal

from meshlib import (
    MeshPlan,
    NotInMesh,
    OfflineMesh,
    ParallelDims,
    build_mesh_context,
    build_offline_mesh,
    init_device_mesh,
)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_coordinates_without_a_process_group__MESH_81(device):
    with torch.device(device):
        mesh = OfflineMesh(("dp", "cp", "tp"), (2, 2, 2))
        assert mesh.coordinate(5) == (1, 0, 1)
        seen = mesh.at(5)
        assert seen.get_coordinate() == (1, 0, 1)
        assert seen["dp", "cp"].flatten().rank_list == (1, 3, 5, 7)
        assert mesh.groups("tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
        context = build_mesh_context("dp=2,cp=2,tp=2", rank=5, offline=True)
        assert context.device_mesh.get_coordinate() == (1, 0, 1)
    assert all(type(number) is int for number in (*mesh.coordinate(5), *mesh.rank_list, *seen.mesh_shape))
    assert not dist.is_initialized()


@pytest.mark.parametrize("environment", [{}, {"RANK": "1", "WORLD_SIZE": "4"}, {"WORLD_SIZE": "4"}])
def test_no_process_group_is_started__MESH_82(environment, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert isinstance(mesh, OfflineMesh)
    assert mesh == OfflineMesh(("dp", "tp"), (2, 2))
    refusal(lambda: mesh.get_group("dp"), "init_process_group")
    refusal(mesh.get_all_groups, "init_process_group")
    assert not dist.is_initialized()


def test_init_backend_off_makes_no_group__MESH_83(on_every_rank):
    def check(ctx):
        before = len(dist.distributed_c10d._world.pg_map)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), init_backend=False)
        error = refusal(lambda: mesh.get_group("dp"), "no process group", "init_backend=True")
        assert "init_process_group" not in str(error)
        assert len(dist.distributed_c10d._world.pg_map) == before
        return mesh.get_coordinate(), mesh["tp"].rank_list

    assert on_every_rank(check, None, world_size=4) == [
        ((0, 0), (0, 1)),
        ((0, 1), (0, 1)),
        ((1, 0), (2, 3)),
        ((1, 1), (2, 3)),
    ]


def test_json_safe_and_frozen():
    mesh = OfflineMesh(("dp", "tp"), (2, 4))
    assert json.loads(json.dumps(dataclasses.asdict(mesh))) == {
        "mesh_dim_names": ["dp", "tp"],
        "mesh_shape": [2, 4],
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        mesh.mesh_shape = (4, 2)
    assert OfflineMesh(["dp", "tp"], [2, 4]) == mesh
    assert hash(OfflineMesh(["dp", "tp"], [2, 4])) == hash(mesh)
    assert pickle.loads(pickle.dumps(mesh.at(3))) == mesh.at(3) != mesh
    assert "dp=2, tp=4" in repr(mesh)
    assert "[4, 5, 6, 7]" in repr(mesh.at(5)["tp"])


@pytest.mark.parametrize(
    ("sizes", "names", "shape"),
    [
        ((1, 1, 1, 1), ("dp", "cp", "tp"), (1, 1, 1)),
        ((2, 1, 2, 1), ("dp", "cp", "tp"), (2, 1, 2)),
        ((2, 2, 2, 2), ("dp", "cp", "tp", "pp"), (2, 2, 2, 2)),
    ],
)
def test_offline_mesh_of_sizes(sizes, names, shape):
    named = dict(zip(("dp_size", "cp_size", "tp_size", "pp_size"), sizes, strict=True))
    for source in (SimpleNamespace(**named, ep_size=2), named, ParallelDims(**named)):
        mesh = build_offline_mesh(source)
        assert (mesh.mesh_dim_names, mesh.mesh_shape) == (names, shape)


def test_offline_mesh_agrees_with_the_plan():
    dims = ParallelDims(dp_size=2, cp_size=3, tp_size=2, pp_size=4)
    mesh, plan = build_offline_mesh(dims), MeshPlan.build(dims, 48)
    for rank in range(48):
        place = plan.coordinate(rank)
        assert mesh.coordinate(rank) == tuple(place[axis] for axis in ("dp", "cp", "tp", "pp"))
        for axes in ("dp", "pp", ("dp", "cp"), ("tp", "pp")):
            assert mesh.group(axes, rank) == plan.group(axes, rank)
    for axes in ("dp", "cp", "tp", "pp", ("cp", "tp")):
        assert mesh.groups(axes) == plan.groups(axes)


def test_axes_of_a_group_come_in_any_order():
    mesh = build_offline_mesh(ParallelDims.parse("tp=2,pp=2").resolve(8))
    assert mesh.groups(("pp", "tp")) == mesh.groups(("tp", "pp")) == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert mesh.group(("pp", "dp"), 3) == mesh.group(("dp", "pp"), 3) == (1, 3, 5, 7)
    mesh["dp", "cp"].flatten("dp_cp")
    assert mesh.group(["pp", "dp_cp"], 0) == (0, 2, 4, 6)
    refusal(lambda: mesh["pp", "tp"], "order")
    refusal(lambda: mesh.groups(("dp_cp", "dp")), "overlap")
    refusal(lambda: mesh.groups(("pp", "ep")), "'ep'", "dp, cp, tp, pp")
    for axes in ((), None, (None,), 1.5):
        refusal(lambda axes=axes: mesh.groups(axes), "dp, cp, tp, pp")


def test_groups_of_a_mesh_without_names():
    mesh = OfflineMesh(None, (2, 4))
    assert mesh.group(0, 5) == mesh.group(-2, 5) == (1, 5)
    assert mesh.groups(1) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.groups((1, 0)) == (tuple(range(8)),)
    assert OfflineMesh(("dp", "tp"), (2, 4)).group(0, 5) == (1, 5)
    refusal(lambda: mesh.group(2, 0), "2", "0 to 1")
    refusal(lambda: mesh.group("dp", 0), "no axis names")
    refusal(lambda: mesh.group((0, 0), 0), "overlap")


def test_offline_mesh_of_wrong_sizes():
    refusal(lambda: build_offline_mesh(SimpleNamespace(dp_size=2, cp_size=1)), "no tp_size, pp_size")
    refusal(
        lambda: build_offline_mesh({"dp_size": 0, "cp_size": 1, "tp_size": 1, "pp_size": 1}), "at least 1"
    )
    refusal(lambda: build_offline_mesh(ParallelDims(tp_size=-1)), "tp=-1")


@pytest.mark.parametrize(
    "order", [("pp", "dp", "cp", "tp"), ("tp", "dp", "pp", "cp"), ("dp", "tp", "cp", "pp")]
)
def test_every_rank_of_an_offline_context_equals_the_plan(order):
    topology = "dp=2,dp_replicate=2,cp=2,tp=2,pp=2,ep=4"
    for rank in range(16):
        context = build_mesh_context(topology, 16, rank=rank, order=order, offline=True)
        plan = context.plan
        meshes = [context.device_mesh, context.fsdp_non_moe_mesh, context.fsdp_moe_mesh, context.pp_mesh]
        for mesh in meshes:
            for axis in mesh.mesh_dim_names:
                assert mesh[axis].rank_list == plan.group(axis, rank)
                assert mesh.get_local_rank(axis) == plan.local_rank(axis, rank)
        assert sorted(context.device_mesh.rank_list) == list(plan.group("stage", rank))
        assert context.dp_cp_mesh.rank_list == plan.group("dp_cp", rank)


def test_offline_contexts_of_large_worlds():
    context = build_mesh_context("dp=64,cp=2,tp=8,pp=4,ep=16", rank=4095, offline=True)
    assert context.device_mesh.mesh_shape == (64, 2, 8)
    assert context.device_mesh.get_coordinate() == (63, 1, 7)
    assert context.pp_mesh.rank_list == (1023, 2047, 3071, 4095)
    refusal(lambda: build_mesh_context("dp=2", rank=2, offline=True), "rank 2")


def test_a_rank_outside_of_an_offline_mesh():
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",), rank_list=(4, 6)).at(5)
    assert mesh.get_coordinate() is None
    with pytest.raises(NotInMesh, match=r"rank 5 .*\[4, 6\]"):
        mesh.get_local_rank()


def test_importing_meshlib_leaves_torch_alone():
    code = (
        "import sys, meshlib; from meshlib import *; "
        "build_mesh_context('dp=2,tp=2', rank=1, offline=True).device_mesh['dp'].rank_list; "
        "init_device_mesh('cpu', (2,)); MeshPlan.build('tp=2', 4).describe(); "
        "build_distributed_setup({}, dp_shard_size=None, dp_replicate_size=None, world_size=2); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
