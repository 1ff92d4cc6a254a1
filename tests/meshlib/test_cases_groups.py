"""Mesh cases: rank lists of the dense, FSDP and expert views, coordinates and neighbours."""

from __future__ import annotations

import pytest
from cases import assert_groups, plan_of, ranks_of, refusal

from meshlib import MeshError, MeshPlan, TopologyError, UnknownAxis

EDP = ("edp_replicate", "edp_shard")
MEGATRON = {"order": MeshPlan.order_from_megatron("tp-cp-pp-ep-dp")}
TP8 = "[0,1] [2,3] [4,5] [6,7]"

GROUPS = [
    ("MESH-26", "W16 tp=2,pp=4", "tp", "[0,1] [2,3] [4,5] [6,7] [8,9] [10,11] [12,13] [14,15]"),
    ("MESH-26", "W16 tp=2,pp=4", "dp", "[0,2] [1,3] [4,6] [5,7] [8,10] [9,11] [12,14] [13,15]"),
    ("MESH-26", "W16 tp=2,pp=4", "pp", "[0,4,8,12] [1,5,9,13] [2,6,10,14] [3,7,11,15]"),
    ("MESH-27", "W8 tp=2,pp=2", "dp", "[0,2] [1,3] [4,6] [5,7]"),
    ("MESH-27", "W8 tp=2,pp=2", "pp", "[0,4] [1,5] [2,6] [3,7]"),
    ("MESH-27", "W8 tp=2,pp=2", ("pp", "tp"), "[0,1,4,5] [2,3,6,7]"),
    ("MESH-27", "W8 tp=2,pp=2", "mp", "[0,1,4,5] [2,3,6,7]"),
    ("MESH-27", "W8 tp=2,pp=2", ("dp", "tp"), "[0-3] [4-7]"),
    ("MESH-27", "W8 tp=2,pp=2", ("pp", "dp"), "[0,2,4,6] [1,3,5,7]"),
    ("MESH-29", "W8 dp=2,cp=2,tp=2", "cp", "[0,2] [1,3] [4,6] [5,7]"),
    ("MESH-29", "W8 dp=2,cp=2,tp=2", "dp", "[0,4] [1,5] [2,6] [3,7]"),
    ("MESH-29", "W8 dp=2,cp=2,tp=2", "dp_cp", "[0,2,4,6] [1,3,5,7]"),
    ("MESH-29", "W8 dp=2,cp=2,tp=2", ("cp", "tp"), "[0-3] [4-7]"),
    ("MESH-29", "W8 dp=2,cp=2,tp=2", ("dp", "tp"), "[0,1,4,5] [2,3,6,7]"),
    ("MESH-30", "W8 cp=2,tp=4", "cp", "[0,4] [1,5] [2,6] [3,7]"),
    (
        "MESH-31",
        "W24 dp=4,cp=3,tp=2",
        "cp",
        "[0,2,4] [1,3,5] [6,8,10] [7,9,11] [12,14,16] [13,15,17] [18,20,22] [19,21,23]",
    ),
    ("MESH-32", "W16 cp=2,tp=2,pp=2", "tp", "[0,1] [2,3] [4,5] [6,7] … [14,15]"),
    ("MESH-32", "W16 cp=2,tp=2,pp=2", "cp", "[0,2] [1,3] [4,6] [5,7] … [13,15]"),
    ("MESH-32", "W16 cp=2,tp=2,pp=2", "dp", "[0,4] [1,5] [2,6] [3,7] … [11,15]"),
    ("MESH-32", "W16 cp=2,tp=2,pp=2", "pp", "[0,8] [1,9] [2,10] [3,11] … [7,15]"),
    ("MESH-33", "W32 cp=16", "cp", "[0-15] [16-31]"),
    ("MESH-33", "W32 cp=16", "dp", "[0,16] [1,17] [2,18] [3,19] … [15,31]"),
    ("MESH-33", "W32 cp=16", "dp_cp", "[0-31]"),
    ("MESH-34", "W16 cp=2,tp=2,dp_replicate=2", "fsdp_replicate", "[0,8] [1,9] [2,10] [3,11] … [7,15]"),
    (
        "MESH-34",
        "W16 cp=2,tp=2,dp_replicate=2",
        "fsdp_shard",
        "[0,2,4,6] [1,3,5,7] [8,10,12,14] [9,11,13,15]",
    ),
    ("MESH-34", "W16 cp=2,tp=2,dp_replicate=2", "batch", "[0,4,8,12] [1,5,9,13] [2,6,10,14] [3,7,11,15]"),
    ("MESH-34", "W16 cp=2,tp=2,dp_replicate=2", "loss", "[0,2,4,6,8,10,12,14] [1,3,5,7,9,11,13,15]"),
    ("MESH-34", "W16 cp=2,tp=2,dp_replicate=2", "dp_cp", "[0,2,4,6,8,10,12,14] [1,3,5,7,9,11,13,15]"),
    ("MESH-42", "W8 tp=2,ep=4", "ep", "[0-3] [4-7]"),
    ("MESH-42", "W8 tp=2,ep=4", EDP, "[0,4] [1,5] [2,6] [3,7]"),
    ("MESH-42", "W8 tp=2,ep=4", "edp", "[0,4] [1,5] [2,6] [3,7]"),
    ("MESH-42", "W8 tp=2,ep=4", "dp", "[0,2,4,6] [1,3,5,7]"),
    ("MESH-43", "W16 tp=2,ep=4", "ep", "[0-3] [4-7] [8-11] [12-15]"),
    ("MESH-43", "W16 tp=2,ep=4", EDP, "[0,4,8,12] [1,5,9,13] [2,6,10,14] [3,7,11,15]"),
    ("MESH-43", "W16 tp=2,ep=8", "ep", "[0-7] [8-15]"),
    ("MESH-43", "W16 tp=2,ep=8", EDP, "[0,8] [1,9] [2,10] [3,11] … [7,15]"),
    ("MESH-44", "W32 tp=2,pp=2,ep=8", "ep", "[0-7] [8-15] [16-23] [24-31]"),
    ("MESH-44", "W32 tp=2,pp=2,ep=8", ("pp", "ep"), "[0-7,16-23] [8-15,24-31]"),
    ("MESH-45", "W8 tp=2,pp=2,ep=2", "pp", "[0,4] [1,5] [2,6] [3,7]"),
]

IN_MEGATRON_ORDER = [
    ("tp", TP8),
    ("dp", "[0,4] [1,5] [2,6] [3,7]"),
    ("pp", "[0,2] [1,3] [4,6] [5,7]"),
    (("pp", "tp"), "[0-3] [4-7]"),
]

OF_A_RANK = [
    (
        "MESH-35",
        "W16 cp=2,tp=2,dp_replicate=2",
        9,
        {
            "fsdp_replicate": "1,9",
            "fsdp_shard": "9,11,13,15",
            "cp": "9,11",
            "tp": "8,9",
            "batch": "1,5,9,13",
            "loss": "1,3,5,7,9,11,13,15",
        },
    ),
    (
        "MESH-40",
        "W8 cp=2,tp=2,dp_replicate=1,dp_shard=4",
        5,
        {"dp": "1,5", "cp": "5,7", "tp": "4,5", "dp_cp": "1,3,5,7", "fsdp_shard": "1,3,5,7"},
    ),
    (
        "MESH-41",
        "W16 cp=4,tp=2,dp_replicate=4,dp_shard=2",
        3,
        {"fsdp_shard": "1,3", "cp": "1,3,5,7"},
    ),
    ("MESH-42", "W8 tp=2,ep=4", 5, {"tp": "4,5", "dp": "1,3,5,7", "ep": "4-7", EDP: "1,5"}),
    ("MESH-44", "W32 tp=2,pp=2,ep=8", 0, {EDP: "0,8"}),
    (
        "MESH-48",
        "W8 tp=2,ep=2,dp_replicate=2,dp_shard=2,edp_shard=2",
        5,
        {
            "dp": "1,3,5,7",
            "fsdp_shard": "5,7",
            "fsdp_replicate": "1,5",
            "edp_replicate": "1,5",
            "edp_shard": "5,7",
            "ep": "4,5",
        },
    ),
    (
        "MESH-49",
        "W8 tp=2,ep=4,dp_replicate=2,dp_shard=2,edp_shard=2",
        5,
        {"ep": "4-7", "edp_shard": "1,5", "edp_replicate": "5"},
    ),
    (
        "MESH-50",
        "W8 tp=2,pp=2,ep=2,dp_replicate=2,dp_shard=1,edp_shard=1",
        6,
        {"ep": "6,7", "edp_replicate": "4,6"},
    ),
    (
        "MESH-51",
        "W16 cp=2,tp=2,ep=8,dp_replicate=4,dp_shard=2,edp_shard=1",
        13,
        {"dp_cp": "1,3,5,7,9,11,13,15", "ep": "8-15", "edp_replicate": "5,13"},
    ),
    (
        "MESH-52",
        "W8 tp=4,ep=2,dp_replicate=1,dp_shard=2,edp_shard=1",
        0,
        {"ep": "0,1", "edp_replicate": "0,2,4,6", "tp": "0-3", "dp": "0,4"},
    ),
    (
        "MESH-53",
        "W8 tp=8,ep=2,dp_replicate=1,dp_shard=1,edp_shard=1",
        3,
        {"ep": "2,3", "edp_replicate": "1,3,5,7"},
    ),
    ("MESH-54", "W6 tp=2,ep=3,dp_replicate=3,dp_shard=1", 2, {"tp": "2,3", "ep": "0-2"}),
    ("MESH-54", "W6 tp=2,ep=3,dp_replicate=3,dp_shard=1", 3, {"tp": "2,3", "ep": "3-5"}),
]


@pytest.mark.parametrize(
    ("case", "axes", "groups"), [pytest.param(c, a, g, id=f"{i} {a}") for i, c, a, g in GROUPS]
)
def test_groups(case, axes, groups):
    assert_groups(plan_of(case), axes, groups)


@pytest.mark.parametrize(("axes", "groups"), IN_MEGATRON_ORDER)
def test_megatron_order__MESH_28(axes, groups):
    assert_groups(plan_of("W8 tp=2,pp=2", **MEGATRON), axes, groups)


@pytest.mark.parametrize(
    ("case", "rank", "groups"), [pytest.param(c, r, g, id=f"{i} rank {r}") for i, c, r, g in OF_A_RANK]
)
def test_groups_of_a_rank(case, rank, groups):
    plan = plan_of(case)
    assert {axes: plan.group(axes, rank) for axes in groups} == {a: ranks_of(g) for a, g in groups.items()}


def test_coordinates_of_large_cp__MESH_33():
    place = plan_of("W32 cp=16").coordinate(17)
    assert (place["dp"], place["cp"]) == (1, 1)


def test_fsdp_is_fsdp_shard__MESH_34():
    plan = plan_of("W16 cp=2,tp=2,dp_replicate=2")
    assert plan.dims.dp_shard_size == 4
    for alias in ("fsdp", "dp_shard", "dp_shard_cp"):
        assert plan.groups(alias) == plan.groups("fsdp_shard")
    assert plan.groups("dp_replicate") == plan.groups("fsdp_replicate")


def test_sizes__MESH_36():
    plan = plan_of("W8 tp=2,dp_replicate=2")
    sizes = {a: plan.size(a) for a in ("batch", "loss", "fsdp_replicate", "fsdp_shard", "tp", "cp", "pp")}
    assert sizes == {
        "batch": 4,
        "loss": 4,
        "fsdp_replicate": 2,
        "fsdp_shard": 2,
        "tp": 2,
        "cp": 1,
        "pp": 1,
    }


def test_samples_of_a_batch__MESH_39():
    plan = plan_of("W8 dp_replicate=2,dp_shard=4")
    assert 64 // plan.size("batch") == 8
    assert [r for r in range(8) if plan.coordinate(r, "fsdp")["fsdp_shard"] == 0] == [0, 4]
    assert plan.ranks("fsdp", fsdp_shard=0) == (0, 4)


def test_coordinate__MESH_40():
    assert plan_of("W8 cp=2,tp=2,dp_replicate=1,dp_shard=4").coordinate(5) == {
        "pp": 0,
        "dp": 1,
        "cp": 0,
        "tp": 1,
    }


def test_pp_is_one_axis_of_both_views__MESH_45():
    plan = plan_of("W8 tp=2,pp=2,ep=2")
    for rank in range(8):
        assert plan.coordinate(rank)["pp"] == plan.coordinate(rank, "expert")["pp"]


def test_axis_of_another_view__MESH_46():
    plan = plan_of("W8 tp=2,pp=2,ep=2")
    refusal(lambda: plan.rank(pp=0, ep=1), "ep", "dense view", 'view="expert"')
    assert plan.rank(view="expert", pp=0, edp_replicate=0, ep=1) == 1


def test_views_that_disagree__MESH_47():
    views = {"inner_pp": (("edp", 2), ("ep", 2), ("pp", 2))}
    error = refusal(
        lambda: plan_of("W8 tp=2,pp=2,ep=2", views=views),
        "pp",
        "[0, 4] [1, 5] [2, 6] [3, 7]",
        "[0, 1] [2, 3] [4, 5] [6, 7]",
        "inner_pp",
    )
    assert isinstance(error, TopologyError)


@pytest.mark.parametrize(
    ("view", "fragments"),
    [
        ((("a", 2), ("b", 2)), ["a * b = 4 (2 * 2)", "8 ranks"]),
        ((("a", 2), ("a", 4)), ["a", "twice"]),
        ((("a", 8), ("b", 0)), ["b", "at least 1"]),
        ((("a", 2.0), ("b", 4)), ["a", "2.0"]),
        ((("not an axis", 8),), ["not an axis"]),
        ("ab", ["pairs"]),
        ((), ["no axes"]),
    ],
)
def test_views_that_are_none__MESH_47(view, fragments):
    refusal(lambda: plan_of("W8 tp=2", views={"mine": view}), "mine", *fragments)


def test_view_that_agrees():
    plan = plan_of("W8 tp=2,pp=2", views={"rollout": (("pp", 2), ("engine", 2), ("tp", 2))})
    assert plan.views == ("dense", "fsdp", "expert", "rollout")
    assert plan.axes("rollout") == ("pp", "engine", "tp")
    assert plan.groups("engine") == plan.groups("dp")
    assert plan.groups(("engine", "tp")) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert plan.rank(view="rollout", pp=1, engine=0, tp=1) == 5
    refusal(lambda: plan_of("W8 tp=2", views={"dense": (("a", 8),)}), "dense", "another name")


def test_mixed_groups__MESH_50_51_52_53():
    stage = plan_of("W8 tp=2,pp=2,ep=2,dp_replicate=2,dp_shard=1,edp_shard=1")
    assert stage.coordinate(6, "expert")["ep"] == 0
    assert stage.shape("expert")[1:] == (2, 1, 2)
    plan = plan_of("W16 cp=2,tp=2,ep=8,dp_replicate=4,dp_shard=2,edp_shard=1")
    assert plan.coordinate(13) == {"pp": 0, "dp": 3, "cp": 0, "tp": 1}
    assert plan.shape("expert")[1:] == (2, 1, 8)
    assert plan_of("W8 tp=8,ep=2,dp_replicate=1,dp_shard=1,edp_shard=1").shape("expert")[1:] == (4, 1, 2)


def test_ranks_and_coordinates__MESH_55():
    plan = plan_of("W8 tp=2,pp=2")
    assert plan.rank(pp=1, dp=0, tp=1) == 5
    assert plan.coordinate(6) == {"pp": 1, "dp": 1, "cp": 0, "tp": 0}
    assert plan.ranks(pp=0, dp=1) == (2, 3)
    assert plan.ranks(dp=1) == (2, 3, 6, 7)
    assert plan.ranks(dp=1, tp=1) == (3, 7)
    assert plan.ranks() == tuple(range(8))


def test_neighbours__MESH_56():
    plan = plan_of("W8 tp=2,pp=4")
    assert [plan.neighbour("pp", r, 1) for r in range(8)] == [2, 3, 4, 5, 6, 7, 0, 1]
    assert [plan.neighbour("pp", r, -1) for r in range(8)] == [6, 7, 0, 1, 2, 3, 4, 5]
    assert [plan.group("pp", r)[0] for r in range(8)] == [r % 2 for r in range(8)]
    assert [plan.neighbour("pp", r, 1, wrap=False) for r in range(8)] == [2, 3, 4, 5, 6, 7, None, None]
    assert [plan.neighbour(("pp", "tp"), r, 3) for r in range(8)] == [3, 4, 5, 6, 7, 0, 1, 2]
    assert [plan.neighbour(("pp", "tp"), r, 3, wrap=False) for r in (4, 5)] == [7, None]


def test_stages__MESH_57():
    two = plan_of("W4 pp=2")
    assert [two.neighbour("pp", r, 1) for r in (0, 1)] == [2, 3]
    four = plan_of("W4 pp=4")
    assert (four.group("pp", 0)[0], four.group("pp", 0)[-1]) == (0, 3)


def test_embedding_ranks__MESH_58():
    plan = plan_of("W8 tp=2,pp=4")
    ends = [tuple(r for r in g if plan.is_first("pp", r) or plan.is_last("pp", r)) for g in plan.groups("pp")]
    assert ends == [(0, 6), (1, 7)]
    assert [r for r in range(8) if plan.is_first("pp", r)] == [0, 1]
    alone = plan_of("W2 tp=2")
    assert all(alone.is_first("pp", r) and alone.is_last("pp", r) for r in range(2))


def test_replica_scope_with_tp_between_dp_and_cp():
    # dp is outermost, then tp, then cp. dp * cp in ascending order, halved: replicas are dp 0 and dp 1.
    plan = MeshPlan.build(
        "dp=2,tp=2,cp=2,dp_replicate=2,ep=2", 8, order=("pp", "dp", "tp", "cp"), ep_scope="replica"
    )
    assert plan.groups("fsdp_shard") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert plan.groups("ep") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert plan.groups("edp_shard") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert plan.groups("edp_replicate") == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("call", "fragments"),
    [
        (lambda p: p.group("dq", 0), ["'dq'", "dp, cp, tp"]),
        (lambda p: p.group(("dp", "ep"), 0), ["dp is in dense", "ep is in expert"]),
        (lambda p: p.group(("dp", "dp"), 0), ["overlap"]),
        (lambda p: p.group(("dp_cp", "cp"), 0), ["overlap"]),
        (lambda p: p.group((), 0), ["no axis"]),
        (lambda p: p.group(5, 0), ["tuple of names", "5"]),
        (lambda p: p.group([["tp"]], 0), ["tuple of names"]),
        (lambda p: p.group("tp", 8), ["rank 8", "0 to 7"]),
        (lambda p: p.group("tp", -1), ["rank -1"]),
        (lambda p: p.group("tp", True), ["True"]),
        (lambda p: p.group("tp", 1.0), ["1.0"]),
        (lambda p: p.coordinate(0, "sparse"), ["'sparse'", "dense, fsdp, expert"]),
        (lambda p: p.axes("sparse"), ["'sparse'"]),
        (lambda p: p.rank(pp=0), ["needs dp, tp"]),
        (lambda p: p.rank(pp=2, dp=0, tp=0), ["pp=2", "size 2"]),
        (lambda p: p.rank(pp=True, dp=0, tp=0), ["pp=True"]),
        (lambda p: p.neighbour("pp", 0, 1.5), ["step", "1.5"]),
        (lambda p: p.node(0), ["node_size"]),
        (lambda p: p.crosses_nodes("tp"), ["node_size"]),
    ],
)
def test_wrong_questions(call, fragments):
    refusal(lambda: call(plan_of("W8 tp=2,pp=2")), *fragments)


def test_unknown_axis_is_both_errors():
    with pytest.raises(KeyError) as caught:
        plan_of("W8 tp=2").group("dq", 0)
    assert isinstance(caught.value, MeshError)
    assert isinstance(caught.value, UnknownAxis)
    assert not str(caught.value).startswith(("'", '"'))


@pytest.mark.parametrize(
    ("order", "fragments"),
    [
        (("pp", "dp", "tp"), ["leaves out cp=2"]),
        (("pp", "dp", "cp", "tp", "tp"), ["twice"]),
        (("pp", "dp", "cp", "ep"), ["ep"]),
        ("tp-cp-ep-dp-pp", ["order_from_megatron"]),
    ],
)
def test_wrong_orders(order, fragments):
    refusal(lambda: plan_of("W8 cp=2,tp=2", order=order), *fragments)


def test_order_without_axes_of_size_one():
    assert plan_of("W8 tp=2", order=("tp", "dp")).groups("dp") == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("tp-cp-ep-dp-pp", ("pp", "dp", "cp", "tp")),
        ("tp-cp-pp-ep-dp", ("dp", "pp", "cp", "tp")),
        ("TP-PP-DP", ("dp", "pp", "tp")),
    ],
)
def test_orders_from_megatron(text, order):
    assert MeshPlan.order_from_megatron(text) == order


@pytest.mark.parametrize("text", ["tp-xp", "tp-tp-dp", "", "tp,dp", None])
def test_orders_that_are_not_megatrons(text):
    refusal(lambda: MeshPlan.order_from_megatron(text), "tp-cp-ep-dp-pp")


@pytest.mark.parametrize(
    ("view", "alias", "axis"),
    [
        ("fsdp", "fsdp", "fsdp_shard"),
        ("fsdp", "dp_shard", "fsdp_shard"),
        ("fsdp", "dp_replicate", "fsdp_replicate"),
        ("dense", "batch", "dp"),
        ("expert", "ep_shard", "edp_shard"),
    ],
)
def test_coordinates_by_other_names_of_an_axis(view, alias, axis):
    plan = plan_of("W16 dp=4,dp_replicate=2,tp=2,pp=2,ep=2,edp_shard=2")
    for rank in range(16):
        place = plan.coordinate(rank, view)
        named = {alias if name == axis else name: number for name, number in place.items()}
        assert plan.rank(view=view, **named) == rank
    assert plan.ranks(view, **{alias: 1}) == plan.ranks(view, **{axis: 1})
    refusal(lambda: plan.rank(view=view, **{alias: 1, axis: 1}), axis, "twice")
    refusal(lambda: plan.rank(view=view, **{alias: 7}), f"{alias}=7", "out of range")


def test_names_of_several_axes_are_no_coordinate():
    plan = plan_of("W8 tp=2,pp=2,ep=2")
    refusal(lambda: plan.rank(dp_cp=1), "dp_cp", "dp, cp")
    refusal(lambda: plan.rank(dp_shard=1), "dp_shard", 'view="fsdp"')
    refusal(lambda: plan.rank(nope=1), "nope", "pp, dp, cp, tp")


def test_views_as_mappings():
    pairs = {"x": (("a", 2), ("b", 4))}
    plan = plan_of("W8 ", views={"x": {"a": 2, "b": 4}})
    assert plan == plan_of("W8 ", views=pairs)
    assert plan.groups("a") == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_a_refused_view_of_a_large_world_shows_a_few_groups():
    # Outermost of two, pp joins rank r to rank r + 32768; innermost, to its neighbour.
    world = 65536
    error = refusal(
        lambda: MeshPlan.build("pp=2", world, views={"x": {"a": world // 2, "pp": 2}}),
        "[0, 32768] [1, 32769] [2, 32770] ... (32768 groups)",
        "[0, 1] [2, 3] [4, 5] ... (32768 groups)",
    )
    assert len(str(error)) < 400
