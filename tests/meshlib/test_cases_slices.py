"""Mesh cases: slices and flattening, on offline and on live meshes."""

from __future__ import annotations

import pytest

from meshlib import MeshError, OfflineMesh, UnknownAxis, init_device_mesh

CUBE = (("dp", "cp", "tp"), (2, 2, 2))
GRID = (("dp", "tp"), (2, 4))


def live(names, shape):
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def offline(names, shape, rank):
    return OfflineMesh(names, shape).at(rank)


def refused(call, *fragments):
    """The call fails with a message that has all the fragments."""
    with pytest.raises(MeshError) as caught:
        call()
    for fragment in fragments:
        assert fragment in str(caught.value), str(caught.value)


@pytest.fixture(params=["offline", "fake"])
def on_ranks(request, on_every_rank):
    """``on_ranks(check, (names, shape))`` runs ``check(mesh, rank)`` for every rank of an offline or a
    live mesh.
    """

    def run(check, mesh):
        names, shape = mesh
        world_size = 1
        for size in shape:
            world_size *= size
        if request.param == "offline":
            return [check(offline(names, shape, rank), rank) for rank in range(world_size)]
        return on_every_rank(lambda ctx: check(live(names, shape), ctx.rank), None, world_size=world_size)

    return run


def test_slices_keep_the_order__MESH_66(on_ranks):
    def check(mesh, rank):
        part = mesh["dp", "tp"]
        refused(lambda: mesh["cp", "dp"], 'mesh["dp", "cp"]')
        refused(lambda: mesh["tp", "dp"], 'mesh["dp", "tp"]')
        refused(lambda: mesh["tp", "cp", "dp"], 'mesh["dp", "cp", "tp"]')
        refused(lambda: mesh["dp", "dp"], "overlap")
        refused(lambda: mesh["ep"], "'ep'", "dp, cp, tp")
        with pytest.raises(UnknownAxis):
            mesh["ep"]
        return part.rank_list, part.mesh_shape, part.mesh_dim_names, part.get_coordinate()

    returns = on_ranks(check, CUBE)
    assert returns[5] == ((0, 1, 4, 5), (2, 2), ("dp", "tp"), (1, 1))
    assert returns[2] == ((2, 3, 6, 7), (2, 2), ("dp", "tp"), (0, 0))


def test_slices_and_flat_axes__MESH_67(on_ranks):
    def check(mesh, rank):
        part = mesh["dp", "cp"]
        flat = part.flatten()
        odd = mesh["dp", "tp"].flatten()
        return {
            "part": (part.mesh_shape, part.rank_list),
            "flat": (flat.mesh_dim_names, flat.mesh_shape, flat.ndim, flat.rank_list),
            "groups": flat.groups("dp_cp"),
            "found again": mesh["dp_cp"].rank_list,
            "from the mesh": mesh.groups("dp_cp"),
            "odd": odd.rank_list,
            "slice of a slice": mesh["dp", "cp"]["cp"].rank_list,
            "place": flat.get_local_rank(),
        }

    returns = on_ranks(check, CUBE)
    assert returns[0] == {
        "part": ((2, 2), (0, 2, 4, 6)),
        "flat": (("dp_cp",), (4,), 1, (0, 2, 4, 6)),
        "groups": ((0, 2, 4, 6), (1, 3, 5, 7)),
        "found again": (0, 2, 4, 6),
        "from the mesh": ((0, 2, 4, 6), (1, 3, 5, 7)),
        "odd": (0, 1, 4, 5),
        "slice of a slice": (0, 2),
        "place": 0,
    }
    assert [r["place"] for r in returns] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert returns[5]["found again"] == (1, 3, 5, 7)


def test_group_of_a_flat_axis__MESH_67(on_every_rank):
    import torch.distributed as dist

    def check(ctx):
        mesh = live(*CUBE)
        flat = mesh["dp", "cp"].flatten()
        group = mesh.get_group("dp_cp")
        assert group is flat.get_group() is flat.get_group(0) is mesh["dp_cp"].get_group()
        return tuple(dist.get_process_group_ranks(group))

    assert on_every_rank(check, None, world_size=8)[:2] == [(0, 2, 4, 6), (1, 3, 5, 7)]


def test_flattening_again__MESH_68(on_ranks):
    def check(mesh, rank):
        flat = mesh["dp", "cp"].flatten()
        again = mesh["dp", "cp"].flatten("dp_cp")
        assert again == flat
        if not isinstance(mesh, OfflineMesh):
            assert again.get_group() is flat.get_group()
        refused(lambda: mesh["cp", "tp"].flatten("dp_cp"), "'dp_cp'", "cp, tp")
        refused(lambda: mesh["dp", "cp"].flatten("tp"), "'tp'")
        refused(lambda: mesh["dp", "cp"].flatten("cp"), "'cp'")
        refused(lambda: mesh["dp_cp", "cp"], "overlap")
        refused(lambda: mesh["dp", "dp_cp"], "overlap")
        one = mesh["dp"]
        assert one.flatten("dp") is one
        assert one.flatten() is one
        assert mesh["dp_cp", "tp"].mesh_shape == (4, 2)
        refused(lambda: mesh["tp", "dp_cp"], 'mesh["dp_cp", "tp"]')
        mesh["dp", "tp"].flatten()
        refused(lambda: mesh["dp_tp", "cp"], "interleave")

    on_ranks(check, CUBE)


def test_flat_name__MESH_69(on_ranks):
    def check(mesh, rank):
        flat = mesh["dp", "cp"].flatten("my_flat")
        return flat.mesh_dim_names, mesh["my_flat"].mesh_dim_names

    assert on_ranks(check, CUBE) == [(("my_flat",), ("my_flat",))] * 8


def test_flattening_inner_axes__MESH_70(on_ranks):
    def check(mesh, rank):
        mesh["b", "c"].flatten("bc")
        part = mesh["a", "bc", "d"]
        return part.mesh_shape, part.mesh_dim_names

    assert on_ranks(check, (("a", "b", "c", "d"), (1, 1, 1, 1))) == [((1, 1, 1), ("a", "bc", "d"))]


def test_a_grid__MESH_71(on_ranks):
    def check(mesh, rank):
        assert mesh.rank_list == tuple(range(8))
        assert mesh["dp", "tp"] is mesh
        assert mesh.ndim == 2
        assert mesh.shape == mesh.mesh_shape == (2, 4)
        assert (mesh.size(), mesh.size(0), mesh.size(1)) == (8, 2, 4)
        assert mesh.get_local_rank("dp") == mesh.get_local_rank(0) == mesh.coordinate(rank)[0]
        assert mesh.get_local_rank("tp") == mesh.get_local_rank(1) == mesh.get_coordinate()[1]
        return mesh["dp"].rank_list, mesh["dp"].mesh_shape, mesh["tp"].rank_list, mesh.get_coordinate()

    returns = on_ranks(check, GRID)
    assert returns[0] == ((0, 4), (2,), (0, 1, 2, 3), (0, 0))
    assert returns[5] == ((1, 5), (2,), (4, 5, 6, 7), (1, 1))


def test_groups_of_a_grid__MESH_71(on_every_rank):
    import torch.distributed as dist

    def check(ctx):
        mesh = live(*GRID)
        assert mesh.get_group("dp") is mesh.get_group(0)
        assert mesh.get_all_groups() == [mesh.get_group(0), mesh.get_group("tp")]
        return [tuple(dist.get_process_group_ranks(group)) for group in mesh.get_all_groups()]

    returns = on_every_rank(check, None, world_size=8)
    assert returns[0] == [(0, 4), (0, 1, 2, 3)]
    assert returns[5] == [(1, 5), (4, 5, 6, 7)]


def test_what_is_missing__MESH_72(on_ranks):
    def check(mesh, rank):
        refused(lambda: mesh.get_local_rank(), "2 axes", "dp, tp")
        refused(lambda: mesh.get_group(), "2 axes", "dp, tp")
        refused(lambda: mesh.get_local_rank("pp"), "'pp'", "dp, tp")
        refused(lambda: mesh.get_group("pp"), "'pp'", "dp, tp")
        refused(lambda: mesh.get_local_rank(10), "10", "dp, tp")
        refused(lambda: mesh.get_group(10), "10", "dp, tp")
        refused(lambda: mesh["pp"], "'pp'", "dp, tp")
        refused(lambda: mesh[()], "at least one")
        refused(lambda: mesh[0], "0", "names")
        refused(lambda: mesh.flatten(""), "text")

    on_ranks(check, GRID)


def test_meshes_without_names__MESH_72(on_ranks):
    def check(mesh, rank):
        assert mesh.mesh_dim_names is None
        assert mesh.mesh_shape == (2, 4)
        assert mesh.get_local_rank(1) == rank % 4
        refused(lambda: mesh["dp"], "no axis names", "mesh_dim_names")
        refused(lambda: mesh.flatten(), "no axis names")

    on_ranks(check, (None, (2, 4)))


def test_an_unbound_mesh_is_seen_from_rank_0():
    mesh = OfflineMesh(*CUBE)
    assert mesh["dp", "cp"].rank_list == (0, 2, 4, 6)
    assert mesh["tp"].group("tp", 5) == (4, 5)
    refused(lambda: mesh.get_coordinate(), "mesh.at(rank)")
    refused(lambda: mesh.get_local_rank("dp"), "mesh.at(rank)")
    refused(lambda: mesh.coordinate(8), "rank 8")
    refused(lambda: mesh.at(-1), "-1")
