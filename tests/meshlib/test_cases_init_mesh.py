"""Mesh cases: shapes and rank lists of ``init_device_mesh``."""

from __future__ import annotations

from datetime import timedelta

import numpy
import pytest
import torch.distributed as dist
from cases import refusal

from meshlib import (
    MeshContext,
    NotInMesh,
    OfflineMesh,
    PlanDisagreement,
    TopologyError,
    build_mesh_context,
    init_device_mesh,
)
from meshlib.live import LiveMesh

NAMES = ("dp", "tp")


def group_ranks(mesh):
    return [tuple(dist.get_process_group_ranks(group)) for group in mesh.get_all_groups()]


def refused_on_every_rank(on_every_rank, world_size, shape, fragments, **options):
    def check(ctx):
        error = refusal(lambda: init_device_mesh("cpu", shape, **options), *fragments)
        return type(error)

    assert on_every_rank(check, None, world_size=world_size) == [TopologyError] * world_size


def test_shape_that_leaves_ranks_over__MESH_73(on_every_rank):
    refused_on_every_rank(
        on_every_rank, 8, (1, 4), ["covers 4 of 8 ranks", "missing 4 to 7", "(2, 4)", "rank_list"]
    )


@pytest.mark.parametrize(("world_size", "shape", "needs"), [(4, (3, 3), 9), (8, (4, 4), 16)])
def test_shape_that_needs_more_ranks__MESH_74(on_every_rank, world_size, shape, needs):
    refused_on_every_rank(
        on_every_rank,
        world_size,
        shape,
        [f"needs {needs}", f"has {world_size}", f"WORLD_SIZE={world_size}"],
    )


def test_part_of_the_world__MESH_75(on_every_rank):
    def check(ctx):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES, rank_list=(4, 5, 6, 7))
        assert mesh.rank_list == (4, 5, 6, 7)
        return group_ranks(mesh) if mesh.get_coordinate() is not None else None

    assert on_every_rank(check, None, world_size=8) == [
        None,
        None,
        None,
        None,
        [(4, 6), (4, 5)],
        [(5, 7), (4, 5)],
        [(4, 6), (6, 7)],
        [(5, 7), (6, 7)],
    ]


def test_whole_world__MESH_76(on_every_rank):
    def check(ctx):
        mesh = init_device_mesh("cpu", (4,))
        assert isinstance(mesh, LiveMesh)
        return mesh.rank_list

    assert on_every_rank(check, None, world_size=4) == [(0, 1, 2, 3)] * 4


@pytest.mark.parametrize(
    "rank_list", [(0, 2, 1, 3), [0, 2, 1, 3], numpy.array([0, 2, 1, 3]), tuple(numpy.int64([0, 2, 1, 3]))]
)
def test_order_of_a_rank_list__MESH_77(on_every_rank, rank_list):
    def check(ctx):
        mesh = init_device_mesh("cpu", (2, 2), rank_list=rank_list)
        assert mesh.rank_list == (0, 2, 1, 3)
        assert all(type(rank) is int for rank in mesh.rank_list)
        assert mesh.mesh.tolist() == [[0, 2], [1, 3]]
        return group_ranks(mesh)

    assert on_every_rank(check, None, world_size=4) == [
        [(0, 1), (0, 2)],
        [(0, 1), (1, 3)],
        [(2, 3), (0, 2)],
        [(2, 3), (1, 3)],
    ]


def test_places_follow_the_rank_list(on_every_rank):
    """A rank's place in the mesh is its place in the group, also where the list isn't ascending."""

    def check(ctx):
        mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("dp",), rank_list=(2, 0, 1))
        return mesh.get_coordinate(), mesh.get_local_rank(), dist.get_rank(mesh.get_group())

    assert on_every_rank(check, None, world_size=3) == [((1,), 1, 1), ((2,), 2, 2), ((0,), 0, 0)]


@pytest.mark.parametrize(
    ("rank_list", "shape", "fragments"),
    [
        ([0, 0, 5], (3,), ["duplicates", "0"]),
        ([0, 5, 5, 0], (2, 2), ["duplicates", "0, 5"]),
        ([-1, 0], (2,), ["-1", "out of range"]),
        ([0, 8], (2,), ["8", "out of range", "0 to 7"]),
        ((0, 1), (2, 4), ["2 ranks for 8 places"]),
        ([0, True], (2,), ["whole numbers"]),
        (3, (1,), ["rank_list", "3"]),
    ],
)
def test_wrong_rank_lists__MESH_78(on_every_rank, rank_list, shape, fragments):
    refused_on_every_rank(on_every_rank, 8, shape, fragments, rank_list=rank_list)


@pytest.mark.parametrize("init_backend", [True, False])
@pytest.mark.parametrize(
    ("names", "fragment"), [(("a", "a"), "twice"), (("a",), "1 name "), (("a", ""), "text")]
)
def test_wrong_names__MESH_79(on_every_rank, names, fragment, init_backend):
    refused_on_every_rank(
        on_every_rank, 8, (2, 4), [fragment], mesh_dim_names=names, init_backend=init_backend
    )


def test_ranks_outside__MESH_80(on_every_rank):
    def check(ctx):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",), rank_list=(0, 2))
        if ctx.rank in (0, 2):
            return mesh.get_coordinate(), mesh.get_local_rank()
        assert mesh.get_coordinate() is None
        for ask in (mesh.get_group, mesh.get_local_rank, lambda: mesh.get_group("dp"), mesh.get_all_groups):
            with pytest.raises(NotInMesh, match=rf"rank {ctx.rank} .*\[0, 2\]"):
                ask()
        return None

    assert on_every_rank(check, None, world_size=4) == [((0,), 0), None, ((1,), 1), None]


def test_each_stage_makes_its_own_mesh(on_every_rank):
    """Ranks that name different lists at the same time don't wait for each other."""

    def check(ctx):
        first = 4 * (ctx.rank // 4)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES, rank_list=range(first, first + 4))
        return group_ranks(mesh)

    returns = on_every_rank(check, None, world_size=8)
    assert returns[0] == [(0, 2), (0, 1)]
    assert returns[7] == [(5, 7), (6, 7)]


def test_members_that_disagree(on_every_rank):
    def check(ctx):
        shape = (4, 1) if ctx.rank == 2 else (2, 2)
        with pytest.raises(PlanDisagreement) as caught:
            init_device_mesh("cpu", shape, mesh_dim_names=NAMES)
        return str(caught.value)

    texts = on_every_rank(check, None, world_size=4)
    assert len(set(texts)) == 1
    assert "rank 2 has shape=[4, 1]" in texts[0]
    assert "ranks 0, 1, 3 have shape=[2, 2]" in texts[0]


@pytest.mark.parametrize("shape", [(), (0, 4), (-2, 2), (2.0, 2), "22", 4, (True, 4)])
def test_wrong_shapes(shape):
    refusal(lambda: init_device_mesh("cpu", shape), "mesh_shape")


def test_wrong_device():
    refusal(lambda: init_device_mesh("cuda:0", (2,)), "cuda:0", "without an index")


def test_offline_rank_list():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=NAMES, rank_list=(4, 5, 6, 7))
    assert isinstance(mesh, OfflineMesh)
    assert mesh.groups("tp") == ((4, 5), (6, 7))
    assert mesh.groups("dp") == ((4, 6), (5, 7))
    assert mesh["dp"].rank_list == (4, 6)


@pytest.mark.parametrize("init_backend", [True, False])
@pytest.mark.parametrize(
    ("world_size", "shape", "fragments"),
    [
        ("8", (1, 4), ["covers 4 of 8 ranks", "missing 4 to 7", "(2, 4)", "rank_list"]),
        ("4", (3, 3), ["needs 9", "has 4", "WORLD_SIZE=4", "environment"]),
        ("eight", (2, 2), ["WORLD_SIZE='eight'", "whole number"]),
        ("0", (2, 2), ["WORLD_SIZE='0'", "at least 1"]),
    ],
)
def test_offline_shape_covers_the_launched_world__MESH_73_74(
    monkeypatch, world_size, shape, fragments, init_backend
):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    error = refusal(lambda: init_device_mesh("cpu", shape, init_backend=init_backend), *fragments)
    assert type(error) is TopologyError
    assert init_device_mesh("cpu", (2,), rank_list=(1, 2)).rank_list == (1, 2)


@pytest.mark.parametrize("timeout", [-1, 0, True, "30", float("nan"), float("inf"), timedelta(seconds=-1)])
def test_wrong_timeouts_offline(timeout):
    refusal(lambda: init_device_mesh("cpu", (2,), timeout=timeout), "timeout", repr(timeout))
    refusal(lambda: MeshContext().build_meshes("cpu", 2, timeout=timeout), "timeout", repr(timeout))
    refusal(lambda: build_mesh_context("dp=2", offline=True, timeout=timeout), "timeout", repr(timeout))
