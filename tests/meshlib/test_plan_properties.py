"""What holds for every plan: of all sizes up to 64 ranks, all rank orders and both expert scopes."""

from __future__ import annotations

import json
import math
import pickle
from itertools import combinations, permutations

import pytest
from brute_force import BruteForcePlan
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlib import MeshPlan, ParallelDims, TopologyError, topologies

ORDERS = list(permutations(("pp", "dp", "cp", "tp")))
MAX_RANKS = 64
untimed = settings(deadline=None)


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


@st.composite
def plans(draw, max_ranks=MAX_RANKS):
    """Valid sizes, divided off one after the other, so that small worlds and size 1 are common."""
    left = world_size = draw(st.integers(1, max_ranks))
    sizes = {}
    for axis in ("tp", "cp", "pp"):
        sizes[axis] = draw(st.sampled_from(divisors(left)))
        left //= sizes[axis]
    scope = draw(st.sampled_from(["stage", "replica"]))
    domain = left * sizes["cp"]
    sizes["dp_replicate"] = draw(st.sampled_from(divisors(domain)))
    span = domain * sizes["tp"] // (sizes["dp_replicate"] if scope == "replica" else 1)
    sizes["ep"] = draw(st.sampled_from(divisors(span)))
    if scope == "stage":
        sizes["edp_shard"] = draw(st.sampled_from(divisors(span // sizes["ep"])))
    dims = ParallelDims(**{f"{axis}_size": size for axis, size in sizes.items()})
    return MeshPlan.build(dims, world_size, order=draw(st.sampled_from(ORDERS)), ep_scope=scope)


@untimed
@given(plans())
def test_groups_of_an_axis_partition_the_ranks(plan):
    for axis in plan.known_axes:
        groups = plan.groups(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(plan.world_size))
        assert {len(group) for group in groups} == {plan.size(axis)}
        for group in groups:
            assert list(group) == sorted(group)
            assert all(plan.group(axis, rank) == group for rank in group)


@untimed
@given(plans(max_ranks=32))
def test_two_axes_of_a_view_meet_in_one_rank(plan):
    for view in plan.views:
        for one, other in combinations(plan.axes(view), 2):
            for rank in range(plan.world_size):
                assert set(plan.group(one, rank)) & set(plan.group(other, rank)) == {rank}


@untimed
@given(plans())
def test_sizes_multiply_to_the_world(plan):
    for view in plan.views:
        assert math.prod(plan.shape(view)) == plan.world_size
        assert plan.shape(view) == tuple(plan.size(axis) for axis in plan.axes(view))
    sizes = plan.dims
    assert sizes.dp_size * sizes.cp_size * sizes.tp_size * sizes.pp_size == plan.world_size
    assert sizes.dp_replicate_size * sizes.dp_shard_size == sizes.dp_size * sizes.cp_size


@untimed
@given(plans())
def test_rank_is_the_inverse_of_coordinate(plan):
    for view in plan.views:
        seen = set()
        for rank in range(plan.world_size):
            place = plan.coordinate(rank, view)
            assert plan.rank(view=view, **place) == rank
            seen.add(tuple(place.values()))
        assert len(seen) == plan.world_size


@untimed
@given(plans())
def test_a_derived_axis_is_the_union_of_its_parts(plan):
    parts = {
        "dp_cp": ("dp", "cp"),
        "edp": ("edp_replicate", "edp_shard"),
        "mp": ("pp", "tp"),
        "stage": ("dp", "cp", "tp"),
        "world": ("pp", "dp", "cp", "tp"),
    }
    for axis, (first, *others) in parts.items():
        for rank in range(plan.world_size):
            ranks = set(plan.group(first, rank))
            for other in others:
                ranks = {member for known in ranks for member in plan.group(other, known)}
            assert tuple(sorted(ranks)) == plan.group(axis, rank) == plan.group((first, *others), rank)
    assert plan.groups("dp_cp") == plan.groups(("fsdp_replicate", "fsdp_shard"))


@untimed
@given(plans())
def test_shared_axes_agree_between_views(plan):
    for axis in ("pp", "tp"):
        for view in plan.views:
            if axis in plan.axes(view):
                for rank in range(plan.world_size):
                    assert plan.coordinate(rank, view)[axis] == plan.coordinate(rank)[axis]


@untimed
@given(plans())
def test_neighbours_walk_through_the_group(plan):
    for axis in (*plan.axes("dense"), *plan.axes("fsdp"), *plan.axes("expert"), "dp_cp", "mp"):
        for rank in range(plan.world_size):
            group = plan.group(axis, rank)
            place = plan.local_rank(axis, rank)
            assert group[place] == rank
            assert plan.neighbour(axis, rank, 1) == group[(place + 1) % len(group)]
            before = plan.neighbour(axis, rank, -1, wrap=False)
            assert before == (group[place - 1] if place else None)
            assert plan.is_first(axis, rank) == (rank == group[0])
            assert plan.is_last(axis, rank) == (rank == group[-1])


@untimed
@given(plans())
def test_round_trips(plan):
    for copy in (
        pickle.loads(pickle.dumps(plan)),
        MeshPlan.from_json(plan.to_json()),
        MeshPlan.from_json(json.loads(json.dumps(plan.to_json()))),
        MeshPlan.from_json(json.dumps(plan.to_json())),
    ):
        assert copy == plan
        assert hash(copy) == hash(plan)
        assert copy.digest == plan.digest
    assert ParallelDims.parse(str(plan.dims)) == plan.dims


@untimed
@given(plans())
def test_topology_text_gives_the_plan_again(plan):
    again = MeshPlan.build(plan.topology, plan.world_size, order=plan.order, ep_scope=plan.ep_scope)
    assert again == plan


@untimed
@given(plans(max_ranks=24))
def test_equals_the_brute_force_plan(plan):
    brute = BruteForcePlan(plan.dims.sizes(), plan.order, plan.ep_scope)
    for view in plan.views:
        for rank in range(plan.world_size):
            assert plan.coordinate(rank, view) == brute.coordinate(rank, view)
        for count in range(1, 5):
            for axes in combinations(plan.axes(view), count):
                assert plan.groups(axes) == brute.groups(axes, view)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize(
    "topology",
    [
        # FSDP groups of 4 in rows of 3: replicas begin and end inside of a row.
        "dp=4,cp=3,tp=2,dp_replicate=3,ep=4",
        "dp=3,cp=4,tp=2,dp_replicate=2,ep=3",
        "dp=6,cp=2,tp=3,dp_replicate=4,ep=9",
        "dp=3,cp=2,tp=2,pp=2,dp_replicate=2,ep=2",
    ],
)
def test_replicas_that_cut_rows(topology, order):
    dims = ParallelDims.parse(topology)
    plan = MeshPlan.build(dims, dims.own_world_size(), order=order, ep_scope="replica")
    brute = BruteForcePlan(plan.dims.sizes(), order, "replica")
    for rank in range(plan.world_size):
        place = plan.coordinate(rank, "expert")
        assert place == brute.coordinate(rank, "expert")
        assert plan.rank(view="expert", **place) == rank
    for axis in plan.axes("expert"):
        assert plan.groups(axis) == brute.groups((axis,), "expert")


@untimed
@given(plans(), st.integers(1, MAX_RANKS))
def test_axes_cross_nodes_where_a_group_does(plan, node_size):
    plan = MeshPlan.build(
        plan.dims, plan.world_size, order=plan.order, ep_scope=plan.ep_scope, node_size=node_size
    )
    for axis in plan.known_axes:
        crosses = any(len({rank // node_size for rank in group}) > 1 for group in plan.groups(axis))
        assert plan.crosses_nodes(axis) == crosses


@untimed
@given(plans(max_ranks=32))
def test_a_group_is_named_after_its_axis(plan):
    for axis in (*plan.axes("dense"), "world"):
        for group in plan.groups(axis):
            name = plan.axis_of(group)
            if len(group) > 1:
                assert plan.group(name, group[0]) == group
    if plan.world_size > 2:
        assert plan.axis_of((0,)) == ""


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 8, 9, 12])
def test_every_topology_once(world_size):
    seen = set()
    for dims in topologies(world_size):
        plan = MeshPlan.build(dims, world_size)
        assert str(dims) == plan.topology
        seen.add(plan)
    count = sum(1 for _ in topologies(world_size))
    assert len(seen) == count
    assert seen == set(all_plans(world_size))


def all_plans(world_size):
    """Every plan of a world, by trying all sizes."""
    sizes = divisors(world_size)
    for cp in sizes:
        for tp in sizes:
            for pp in sizes:
                for replicate in sizes:
                    for ep in sizes:
                        text = f"cp={cp},tp={tp},pp={pp},dp_replicate={replicate},ep={ep}"
                        try:
                            yield MeshPlan.build(text, world_size)
                        except TopologyError:
                            continue


@pytest.mark.long
@pytest.mark.parametrize("scope", ["stage", "replica"])
@pytest.mark.parametrize("world_size", range(1, 17))
def test_every_topology_and_order_equals_the_brute_force_plan(world_size, scope):
    axes = ("dp", "dp_replicate", "cp", "tp", "pp", "ep", "edp_shard")
    for dims in topologies(world_size, axes=axes):
        for order in ORDERS[::5]:
            try:
                plan = MeshPlan.build(dims, world_size, order=order, ep_scope=scope)
            except TopologyError:
                assert scope == "replica"
                continue
            brute = BruteForcePlan(plan.dims.sizes(), order, scope)
            for view in plan.views:
                for rank in range(world_size):
                    assert plan.coordinate(rank, view) == brute.coordinate(rank, view)
                for count in range(1, 5):
                    for chosen in combinations(plan.axes(view), count):
                        assert plan.groups(chosen) == brute.groups(chosen, view)
