"""The promises of a bound context: agreement, right groups, one group a rank set, options, verification,
teardown.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import meshsim
from meshlib import (
    MeshContext,
    MeshError,
    MeshPlan,
    NotInMesh,
    PlanDisagreement,
    TopologyError,
    build_mesh_context,
    init_device_mesh,
    topologies,
)

CPU = torch.device("cpu")
BACKENDS = ["fake", "gloo"]
FULL = "dp=2,cp=2,tp=2,pp=2,dp_replicate=2,ep=4,edp_shard=2"


def meshes_of(context):
    """Every mesh of a context that there is."""
    named = ("device_mesh", "fsdp_non_moe_mesh", "fsdp_moe_mesh", "dp_cp_mesh", "cp_mesh", "pp_mesh")
    return [mesh for mesh in (getattr(context, name) for name in named) if mesh is not None]


def groups_of(context):
    """Each axis's group, of every mesh."""
    return [(axis, mesh.get_group(axis)) for mesh in meshes_of(context) for axis in mesh.mesh_dim_names]


def sum_along_every_axis(ctx):
    """All-reduce the rank number on every group of every mesh; the sums are those of the plan's groups."""
    sums = {}
    for axis, group in groups_of(ctx.mesh):
        number = torch.tensor([float(ctx.rank)])
        dist.all_reduce(number, group=group)
        assert number.item() == sum(ctx.mesh.plan.group(axis, ctx.rank)), axis
        sums[axis] = int(number.item())
    return sums


# 1. Agree, then create


@pytest.mark.parametrize("backend", BACKENDS)
def test_disagreement_is_an_error_on_every_rank__MESH_85(on_every_rank, backend):
    def check(ctx):
        held = len(dist.distributed_c10d._world.pg_map)
        with pytest.raises(PlanDisagreement) as caught:
            build_mesh_context("dp=4" if ctx.rank == 0 else "dp=2,tp=2", 4, timeout=30)
        assert len(dist.distributed_c10d._world.pg_map) == held
        with build_mesh_context("dp=2,tp=2", 4) as context:
            assert context.tp_rank == ctx.rank % 2
        return str(caught.value)

    texts = on_every_rank(check, "dp=4", backend=backend)
    assert len(set(texts)) == 1
    assert "rank 0 has dp=4, dp_shard=4, tp=1" in texts[0]
    assert "ranks 1 to 3 have dp=2, dp_shard=2, tp=2" in texts[0]


@pytest.mark.parametrize(
    ("odd", "fragment"),
    [
        ({"order": ("dp", "pp", "cp", "tp")}, "order"),
        ({"ep_scope": "replica"}, "ep_scope"),
        ({"device_type": "meta"}, "device_type"),
    ],
)
def test_disagreement_about_more_than_sizes(on_every_rank, odd, fragment):
    def check(ctx):
        with pytest.raises(PlanDisagreement) as caught:
            build_mesh_context("dp=2,tp=2", 4, **(odd if ctx.rank == 3 else {}))
        return str(caught.value)

    (text,) = set(on_every_rank(check, "dp=4"))
    assert fragment in text
    assert "rank 3 has" in text
    assert "ranks 0 to 2 have" in text


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_rank_whose_sizes_do_not_fit(on_every_rank, backend):
    """The others would wait for it for ever: they are told why it doesn't come."""

    def check(ctx):
        try:
            build_mesh_context("pp=3" if ctx.rank == 1 else "pp=2", 4)
        except MeshError as error:
            return type(error), str(error)

    returns = on_every_rank(check, "dp=4", backend=backend)
    assert returns[1][0] is TopologyError
    for rank in (0, 2, 3):
        assert returns[rank][0] is PlanDisagreement
        assert "rank 1" in returns[rank][1]
        assert "4 % 3" in returns[rank][1]
        assert "ranks 0, 2, 3 asked for dp=2, dp_shard=2, pp=2" in returns[rank][1]


def test_one_rank_whose_options_are_wrong(on_every_rank):
    def check(ctx):
        context = MeshContext.from_plan(MeshPlan.build("dp=4", 4))
        with pytest.raises(MeshError) as caught:
            context.build_meshes("cpu", 4, timeout=-1 if ctx.rank == 2 else 20)
        return type(caught.value), str(caught.value)

    returns = on_every_rank(check, "dp=4")
    assert returns[2] == (MeshError, "timeout must be above 0, got -1")
    for rank in (0, 1, 3):
        assert returns[rank][0] is PlanDisagreement
        assert "rank 2: timeout must be above 0" in returns[rank][1]


def agreements(monkeypatch, worlds, facts):
    """What two ranks get to hear, in worlds that follow one another on one store."""
    from meshlib import agreement

    store, here = dist.HashStore(), threading.local()
    monkeypatch.setattr(agreement, "default_store", lambda: store)
    monkeypatch.setattr(agreement, "default_group", lambda: here.group)

    def rank_main(rank, groups, of_rank):
        here.group = groups[rank]
        try:
            agreement.Round(range(2), "world", timedelta(seconds=30)).agree(rank, {"sizes": of_rank})
        except PlanDisagreement as error:
            return str(error)
        return "agreed"

    heard = []
    for groups, of_ranks in zip(worlds, facts, strict=True):
        with ThreadPoolExecutor(2) as pool:
            heard.append(list(pool.map(rank_main, (0, 1), (groups, groups), of_ranks)))
    return heard


class StandInGroup:
    """Something that a weak reference can point to."""


def test_a_store_that_outlives_its_world(monkeypatch):
    """The answer of the first world must not be taken for that of the second."""
    first, second = ([StandInGroup(), StandInGroup()] for _ in range(2))
    same, different = ({"dp": 2}, {"dp": 2}), ({"dp": 2}, {"dp": 1})
    heard = agreements(monkeypatch, [first, second, second], [same, different, same])
    assert heard[0] == ["agreed"] * 2
    assert heard[1] == ["ranks disagree about the mesh: rank 0 has dp=2; rank 1 has dp=1"] * 2
    assert heard[2] == ["agreed"] * 2


def test_a_rank_that_never_comes_is_named(on_every_rank):
    def check(ctx):
        if ctx.rank == 2:
            return ""
        with pytest.raises(PlanDisagreement) as caught:
            build_mesh_context("dp=4", timeout=0.5)
        return str(caught.value)

    texts = on_every_rank(check, "dp=4", backend="gloo")
    for rank in (0, 1, 3):
        assert "rank 2 did not build the mesh within 0.5 s" in texts[rank]


def test_agreement_costs_a_fixed_number_of_store_calls(on_every_rank, monkeypatch):
    from meshlib import agreement

    counts = {}

    class Counting:
        def __init__(self, store):
            self._store = store

        def __getattr__(self, name):
            rank = dist.get_rank()
            counts[rank] = counts.get(rank, 0) + 1
            return getattr(self._store, name)

    real = agreement.default_store
    monkeypatch.setattr(agreement, "default_store", lambda: Counting(real()))
    on_every_rank(lambda ctx: None, "dp=64")
    assert len(counts) == 64
    assert max(counts.values()) <= 6


# 2. Right groups


def test_sums_along_every_axis__MESH_84(on_every_rank):
    sums = on_every_rank(sum_along_every_axis, "tp=2,pp=2", world_size=8)
    assert [s["pp"] for s in sums] == [4, 6, 8, 10, 4, 6, 8, 10]
    assert [s["dp"] for s in sums] == [2, 4, 2, 4, 10, 12, 10, 12]
    assert [s["tp"] for s in sums] == [1, 1, 5, 5, 9, 9, 13, 13]


ON_GLOO = [
    "tp=2,pp=2,dp=2",
    "dp=4,dp_replicate=2,ep=2",
    "dp=2,cp=2,tp=2,ep=4",
    "tp=2,dp=3,dp_replicate=3,ep=3",
    "pp=3,cp=2",
    "tp=2,pp=2,dp=2,ep=2,edp_shard=2",
    "dp=1",
]


@pytest.mark.parametrize("topology", ON_GLOO)
def test_sums_on_gloo__MESH_84(on_every_rank, topology):
    on_every_rank(sum_along_every_axis, topology, backend="gloo")


SMALL = [(size, str(dims)) for size in range(1, 9) for dims in topologies(size)]
LARGE = [(size, str(dims)) for size in range(9, 17) for dims in topologies(size)]


def sums_for_each(on_every_rank, cases):
    for size, topology in cases:
        on_every_rank(sum_along_every_axis, topology, world_size=size)


@pytest.mark.parametrize("part", range(4))
def test_every_topology_to_8_ranks(on_every_rank, part):
    sums_for_each(on_every_rank, SMALL[part::4])


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_every_topology_to_16_ranks(on_every_rank, part):
    sums_for_each(on_every_rank, LARGE[part::8])


ORDERS = [
    ("pp", "dp", "cp", "tp"),
    ("dp", "tp", "cp", "pp"),
    ("cp", "tp", "dp", "pp"),
    ("tp", "pp", "dp", "cp"),
]


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    st.sampled_from(SMALL + LARGE[::7]),
    st.sampled_from(ORDERS),
    st.sampled_from(["stage", "replica"]),
)
def test_any_order_and_scope(case, order, scope):
    size, topology = case
    try:
        MeshPlan.build(topology, size, order=order, ep_scope=scope)
    except TopologyError:
        return
    result = meshsim.run(sum_along_every_axis, topology, world_size=size, order=order, ep_scope=scope)
    assert result.ok, result.verdict


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_that_hold_different_numbers_of_groups(on_every_rank, backend):
    """c10d's own names count groups: members that hold different numbers would wait for each other for
    ever.
    """

    def check(ctx):
        extra = dist.new_group([0, 1])
        with build_mesh_context("dp=2,tp=2", timeout=20) as context:
            number = torch.tensor([float(ctx.rank)])
            dist.all_reduce(number, group=context.device_mesh.get_group("dp"))
        if ctx.rank < 2:
            dist.destroy_process_group(extra)
        return number.item()

    assert on_every_rank(check, "dp=4", backend=backend) == [2, 4, 2, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_groups_that_only_some_ranks_have(on_every_rank, backend):
    """In this order fsdp_shard and ep are one group on rank 0, two on rank 2."""

    def check(ctx):
        options = {"order": ("pp", "dp", "tp", "cp"), "timeout": 20}
        with build_mesh_context("dp=2,cp=3,tp=2,dp_replicate=3,ep=2", **options) as context:
            for axis, group in groups_of(context):
                number = torch.tensor([float(ctx.rank)])
                dist.all_reduce(number, group=group)
                assert number.item() == sum(context.plan.group(axis, ctx.rank))
            return context.fsdp_non_moe_mesh.get_group("fsdp_shard") is context.fsdp_moe_mesh.get_group("ep")

    returns = on_every_rank(check, "dp=12", backend=backend)
    assert returns[0]
    assert not returns[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_contexts_side_by_side_and_again(on_every_rank, backend):
    def check(ctx):
        first = build_mesh_context("dp=2,tp=2")
        second = build_mesh_context("tp=2,dp=2")
        total = 0.0
        for context in (second, first):
            number = torch.tensor([float(ctx.rank)])
            dist.all_reduce(number, group=context.device_mesh.get_group("tp"))
            total += number.item()
        one, other = (c.device_mesh.get_group("tp") for c in (first, second))
        assert one is not other
        assert one.group_name != other.group_name
        first.close()
        number = torch.tensor([1.0])
        dist.all_reduce(number, group=second.device_mesh.get_group("dp"))
        second.build_meshes("cpu", 4)
        dist.all_reduce(number, group=second.device_mesh.get_group("dp"))
        second.close()
        return total, number.item()

    assert on_every_rank(check, "dp=4", backend=backend) == [(2, 4), (2, 4), (10, 4), (10, 4)]


# 3. One group a rank set


def test_distinct_groups__MESH_86(on_every_rank):
    def check(ctx):
        groups = {id(group): group for _, group in groups_of(ctx.mesh)}
        ranks = {tuple(dist.get_process_group_ranks(group)) for group in groups.values()}
        assert len(ranks) == len(groups)
        assert ctx.mesh.device_mesh.get_group("dp") is ctx.mesh.dp_cp_mesh.get_group()
        return [members for members in ranks if len(members) > 1]

    returns = on_every_rank(check, "tp=2,dp_replicate=2", world_size=8)
    assert len({members for ranks in returns for members in ranks}) <= 14
    assert len(returns[0]) == 4


def test_pp_is_shared__MESH_45(on_every_rank):
    def check(ctx):
        mesh = ctx.mesh
        assert mesh.pp_mesh.get_group() is mesh.pp_mesh["pp"].get_group("pp")
        made = [group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD]
        pairs = [
            group for group in made if dist.get_process_group_ranks(group) == [ctx.rank % 4, ctx.rank % 4 + 4]
        ]
        assert pairs == [mesh.pp_mesh.get_group()]

    on_every_rank(check, "tp=2,pp=2,ep=2", world_size=8)


def test_size_one_axes_share_a_group__MESH_24(on_every_rank):
    def check(ctx):
        alone = {id(g) for axis, g in groups_of(ctx.mesh) if ctx.mesh.plan.size(axis) == 1}
        made = [group for group in dist.distributed_c10d._world.pg_map if group is not dist.group.WORLD]
        assert ctx.mesh.device_mesh.get_group("tp") is dist.group.WORLD
        return len(alone), len(made)

    assert on_every_rank(check, "tp=8") == [(1, 1)] * 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_sweep_of_live_ones_and_twos__MESH_24(on_every_rank, backend):
    from test_cases_sizes import one_or_two

    patterns = [case for case in one_or_two() if backend == "fake" or case[1] in (2, 4)]
    for topology, world_size in patterns if backend == "fake" else patterns[::6]:
        on_every_rank(sum_along_every_axis, topology, world_size=world_size, backend=backend)


def test_groups_created_by_a_rank_do_not_grow_with_the_world(on_every_rank):
    def check(ctx):
        return len(dist.distributed_c10d._world.pg_map)

    small = on_every_rank(check, "dp=4,cp=2,tp=2,pp=2,dp_replicate=2,ep=2")
    large = on_every_rank(check, "dp=32,cp=2,tp=2,pp=2,dp_replicate=2,ep=2")
    assert set(large) == set(small)
    assert max(large) <= 12


@pytest.mark.parametrize("name", ["plan", "pp_enabled", "dp_cp_mesh", "cp_mesh", "pp_mesh", "rank"])
def test_reading_a_property_creates_no_group(on_every_rank, name):
    def check(ctx):
        held = set(map(id, dist.distributed_c10d._world.pg_map))
        getattr(ctx.mesh, name)
        for mesh in meshes_of(ctx.mesh):
            _ = mesh.mesh, mesh.rank_list, mesh.get_coordinate()
            for axis in mesh.mesh_dim_names:
                mesh[axis].get_group()
        assert set(map(id, dist.distributed_c10d._world.pg_map)) == held

    on_every_rank(check, "dp=2,cp=2,tp=2")


# 4. Options


def options_of(group):
    return group._get_backend(CPU).options


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("timeout", [20, timedelta(seconds=20)])
def test_timeout_reaches_every_group__MESH_87(on_every_rank, backend, timeout):
    def check(ctx):
        with build_mesh_context("dp=2,tp=2,ep=2", timeout=timeout) as context:
            flat = context.device_mesh.flatten("everyone")
            mixed = context.fsdp_moe_mesh["edp_shard", "ep"].flatten()
            groups = [*groups_of(context), ("everyone", flat.get_group()), ("mixed", mixed.get_group())]
            return {axis: options_of(group)._timeout.total_seconds() for axis, group in groups}

    for timeouts in on_every_rank(check, "dp=4", backend=backend):
        assert set(timeouts.values()) == {20.0}
        assert {"dp", "cp", "tp", "dp_cp", "ep", "edp_shard", "pp", "fsdp_shard"} <= set(timeouts)


def test_timeout_reaches_the_group_of_the_whole_world__MESH_87(on_every_rank):
    """The default group has another timeout, so it can't stand for the axis."""

    def check(ctx):
        before = options_of(dist.group.WORLD)._timeout
        with build_mesh_context("dp=2", timeout=7) as context:
            group = context.device_mesh.get_group("dp")
            assert group is not dist.group.WORLD
            assert options_of(group)._timeout == timedelta(seconds=7)
        with build_mesh_context("dp=2", timeout=before) as context:
            assert context.device_mesh.get_group("dp") is dist.group.WORLD
        assert options_of(dist.group.WORLD)._timeout == before

    on_every_rank(check, "dp=2")


def test_without_a_timeout_groups_have_the_worlds(on_every_rank):
    def check(ctx):
        expected = options_of(dist.group.WORLD)._timeout
        assert {options_of(group)._timeout for _, group in groups_of(ctx.mesh)} == {expected}

    on_every_rank(check, "dp=2,tp=2")


def test_timeout_of_the_options_counts__MESH_87(on_every_rank):
    def check(ctx):
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=9)
        with build_mesh_context("dp=2,tp=2", options=options) as context:
            return {options_of(group)._timeout.total_seconds() for _, group in groups_of(context)}

    assert on_every_rank(check, "dp=4", backend="gloo") == [{9.0}] * 4


def test_the_callers_options_are_not_changed__MESH_88(on_every_rank):
    def check(ctx):
        settings_of_dp = dist.ProcessGroupGloo._Options()
        settings_of_dp._timeout = timedelta(seconds=9)
        options = {"dp": settings_of_dp, "tp": ("gloo", None), "ep": "gloo"}
        before = dict(options)
        for _ in range(2):
            with build_mesh_context("dp=2,tp=2,ep=2", options=options) as context:
                assert options_of(context.device_mesh.get_group("dp"))._timeout == timedelta(seconds=9)
                assert options_of(context.device_mesh.get_group("tp"))._timeout > timedelta(seconds=9)
            assert options == before
            assert settings_of_dp._timeout == timedelta(seconds=9)
            assert settings_of_dp.group_name == ""
            assert list(settings_of_dp.global_ranks_in_group) == []

    on_every_rank(check, "dp=4", backend="gloo")


def test_options_that_c10d_writes_into__MESH_88(on_every_rank, monkeypatch):
    """c10d writes the timeout, the ranks and the name of each group into the options that it is given."""
    from meshlib import groups

    real = groups.create_group

    def create(ranks, *, name, options, timeout, **others):
        if options is not None:
            options._timeout = timeout
            options.group_name = name
            options.global_ranks_in_group = list(ranks)
            threads.append(options._threads)
        return real(ranks, name=name, options=options, timeout=timeout, **others)

    threads = []

    def check(ctx):
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=9)
        options._threads = 3
        for _ in range(2):
            with build_mesh_context("dp=2,tp=2", options=options, timeout=20) as context:
                assert options_of(context.device_mesh.get_group("dp"))._timeout == timedelta(seconds=20)
            values = (options._timeout, options._threads, options.group_name)
            assert values == (timedelta(seconds=9), 3, "")
            assert list(options.global_ranks_in_group) == []

    monkeypatch.setattr(groups, "create_group", create)
    on_every_rank(check, "dp=4")
    assert set(threads) == {3}


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"timeout": 0}, "above 0"),
        ({"timeout": -1.5}, "above 0"),
        ({"timeout": "20"}, "'20'"),
        ({"timeout": True}, "True"),
        ({"options": {"dq": "gloo"}}, "'dq'"),
        ({"options": ("gloo", None, None)}, "backend name, Options"),
    ],
)
def test_wrong_options(on_every_rank, arguments, fragment):
    def check(ctx):
        held = len(dist.distributed_c10d._world.pg_map)
        with pytest.raises(MeshError) as caught:
            build_mesh_context("dp=2", **arguments)
        assert fragment in str(caught.value)
        assert len(dist.distributed_c10d._world.pg_map) == held

    on_every_rank(check, "dp=2")


# 5. Verified


@pytest.mark.parametrize(
    ("wrong", "fragment"),
    [
        (lambda ranks, rank: ranks[::-1], "holds [1, 0], not [0, 1]"),
        (lambda ranks, rank: tuple(sorted((rank, (rank + 2) % 4))), "holds [0, 2], not [0, 1]"),
    ],
    ids=["order", "members"],
)
def test_a_group_that_is_not_the_plans_is_found(on_every_rank, monkeypatch, wrong, fragment):
    from meshlib import groups

    real = groups.create_group

    def create(ranks, **options):
        pair = options["description"] == "mesh_tp" and len(ranks) == 2
        return real(wrong(ranks, dist.get_rank()) if pair else ranks, **options)

    def check(ctx):
        held = len(dist.distributed_c10d._world.pg_map)
        with pytest.raises(MeshError) as caught:
            build_mesh_context("dp=2,tp=2")
        assert len(dist.distributed_c10d._world.pg_map) == held
        return str(caught.value)

    monkeypatch.setattr(groups, "create_group", create)
    texts = on_every_rank(check, "dp=4")
    assert texts[0] == f"the tp group of rank 0 {fragment}"


def test_a_mesh_that_is_not_the_plans_is_found(on_every_rank, monkeypatch):
    from meshlib import binding

    real = binding.stage_mesh

    def shifted(plan, view, *arguments):
        part = real(plan, view, *arguments)
        if view == "fsdp" and plan.size("tp") == 2:
            return type(part)(part.axes, part.grid, (*part.coordinate[:-1], 1 - part.coordinate[-1]))
        return part

    def check(ctx):
        with pytest.raises(MeshError, match="the tp axis of the mesh"):
            build_mesh_context("dp=2,tp=2")

    monkeypatch.setattr(binding, "stage_mesh", shifted)
    on_every_rank(check, "dp=4")


# 6. Teardown and membership


@pytest.mark.parametrize("backend", BACKENDS)
def test_close_tears_each_group_down_once(on_every_rank, backend):
    def check(ctx):
        held = len(dist.distributed_c10d._world.pg_map)
        context = build_mesh_context(FULL if ctx.world_size == 16 else "dp=2,tp=2,ep=2")
        context.device_mesh.flatten("everyone")
        assert len(dist.distributed_c10d._world.pg_map) > held
        context.close()
        assert len(dist.distributed_c10d._world.pg_map) == held
        context.close()
        with context:
            pass
        with pytest.raises(MeshError, match="closed"):
            context.device_mesh.get_group("dp")
        with pytest.raises(MeshError, match="closed"):
            context.device_mesh["cp", "tp"].flatten()
        assert dist.is_initialized()

    on_every_rank(check, "dp=4", backend=backend)


def test_closing_after_the_world_has_gone(on_every_rank):
    def check(ctx):
        context = build_mesh_context("dp=2,tp=2")
        for group in list(dist.distributed_c10d._world.pg_map):
            if group is context.device_mesh.get_group("tp"):
                dist.destroy_process_group(group)
        context.close()

    on_every_rank(check, "dp=4")


def test_a_rank_outside_of_a_mesh__MESH_89(on_every_rank):
    def check(ctx):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",), rank_list=(1, 3))
        if ctx.rank in (1, 3):
            number = torch.tensor([1.0])
            dist.all_reduce(number, group=mesh.get_group())
            return number.item()
        assert mesh.get_coordinate() is None
        for ask in (mesh.get_group, mesh.get_local_rank):
            with pytest.raises(NotInMesh, match=rf"rank {ctx.rank} .*\[1, 3\]"):
                ask()
        return None

    assert on_every_rank(check, None, world_size=4) == [None, 2.0, None, 2.0]
