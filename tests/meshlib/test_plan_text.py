"""Plans as text, as JSON, on nodes, and at a hundred thousand ranks."""

from __future__ import annotations

import json

import pytest
from cases import plan_of, refusal

from meshlib import MeshPlan, ParallelDims, UnknownAxis, topologies


def test_describe_shows_every_view_and_axis():
    text = plan_of("W8 tp=2,pp=2,ep=2", node_size=4).describe()
    for part in ("dense", "fsdp", "expert", "edp_shard", "[0, 1] [2, 3] [4, 5] [6, 7]", "2 nodes of 4 ranks"):
        assert part in text
    assert "pp" in next(line for line in text.splitlines() if "crosses" in line)


def test_explain_shows_a_rank():
    text = plan_of("W8 tp=2,pp=2,ep=2", node_size=4).explain(6)
    for part in ("rank 6", "pp 1, dp 1, cp 0, tp 0", "node 1", "[2, 6]", "last"):
        assert part in text
    assert "alone" in plan_of("W1 ").explain(0)
    refusal(lambda: plan_of("W2 ").explain(2), "rank 2")


def test_diff_names_settings_and_groups():
    one, other = plan_of("W8 tp=2,pp=2"), plan_of("W8 tp=4,pp=2", node_size=8)
    text = one.diff(other)
    assert "tp: 2 here, 4 there" in text
    assert "node_size: None here, 8 there" in text
    assert "rank 0 is in [0, 1] here, [0, 1, 2, 3] there" in text
    assert one.diff(plan_of("W8 dp=2,tp=2,pp=2")) == ""
    assert "world_size: 8 here, 16 there" in one.diff(plan_of("W16 tp=2,pp=2"))
    assert "engine" in one.diff(plan_of("W8 tp=2,pp=2", views={"r": (("engine", 8),)}))


def test_axes_that_cross_nodes():
    plan = plan_of("W16 tp=2,pp=2,cp=2", node_size=4)
    assert {a for a in plan.axes("dense") if plan.crosses_nodes(a)} == {"pp", "dp"}
    assert plan.crosses_nodes("world")
    assert [plan.node(rank) for rank in (0, 3, 4, 15)] == [0, 0, 1, 3]
    assert not plan_of("W4 tp=4", node_size=8).crosses_nodes("tp")
    # Nodes of 3 ranks cut the pairs (2, 3) and leave (0, 1) and (4, 5) whole.
    assert plan_of("W6 tp=2", node_size=3).crosses_nodes("tp")
    refusal(lambda: plan_of("W4 tp=4", node_size=0), "node_size", "0")
    refusal(lambda: plan_of("W4 tp=4", node_size=True), "node_size", "True")


def test_json_has_a_version_and_is_checked():
    plan = plan_of("W8 tp=2,pp=2", views={"r": (("engine", 8),)}, node_size=4)
    data = json.loads(json.dumps(plan.to_json()))
    assert data["schema_version"] == 1
    assert MeshPlan.from_json(data) == plan
    refusal(lambda: MeshPlan.from_json({**data, "schema_version": 2}), "schema_version 2", "reads 1")
    refusal(lambda: MeshPlan.from_json({**data, "world_size": 9}), "9")
    refusal(lambda: MeshPlan.from_json({**data, "node_size": 2}), "digest")
    refusal(lambda: MeshPlan.from_json("{"), "JSON")
    refusal(lambda: MeshPlan.from_json([]), "dictionary")
    del data["order"]
    refusal(lambda: MeshPlan.from_json(data), "order missing")


def test_equal_plans_have_one_hash__MESH_90():
    one, other = plan_of("W8 tp=2"), plan_of("W8 dp=4,tp=2,dp_replicate=1")
    assert one == other
    assert len({one, other}) == 1
    assert one.digest == other.digest
    assert one.digest != plan_of("W8 tp=2", order=("pp", "tp", "cp", "dp")).digest


def test_plans_are_frozen():
    plan = plan_of("W8 tp=2")
    with pytest.raises(AttributeError):
        plan.world_size = 4
    with pytest.raises(AttributeError):
        plan.dims.tp_size = 4


@pytest.mark.parametrize(
    ("case", "ranks", "axis"),
    [
        ("W8 tp=2,pp=2", (4, 5), "tp"),
        ("W8 tp=2,pp=2", (5, 4), "tp"),
        ("W8 cp=2,tp=2", (0, 2, 4, 6), "fsdp_shard"),
        ("W8 cp=2,tp=2,dp_replicate=2", (0, 2, 4, 6), "dp_cp"),
        ("W8 tp=2,pp=2,ep=4", (0, 1, 2, 3), "ep"),
        ("W8 tp=2,pp=2", (0, 1, 2, 3), "stage"),
        ("W8 tp=2,pp=2", (0, 1, 4, 5), "mp"),
        ("W8 ", tuple(range(8)), "dp"),
        ("W8 tp=2", tuple(range(8)), "world"),
        ("W8 tp=2", (0, 3), ""),
        ("W8 tp=2", (0,), ""),
        ("W8 tp=2", (), ""),
        ("W8 tp=2", (7, 8), ""),
        ("W1 ", (0,), "world"),
    ],
)
def test_groups_have_names(case, ranks, axis):
    assert plan_of(case).axis_of(ranks) == axis


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("W4 dp=2,tp=2", "dp=2,tp=2"),
        ("W8 tp=8", "tp=8"),
        ("W1 ", "dp=1"),
        ("W8 dp_replicate=2", "dp=8,dp_replicate=2"),
        ("W8 ep=2,edp_shard=2", "dp=8,ep=2,edp_shard=2"),
    ],
)
def test_topology_text(case, text):
    assert plan_of(case).topology == text


def test_topologies_of_four_ranks():
    assert [str(dims) for dims in topologies(4, axes=("dp", "tp", "pp"))] == [
        "dp=4",
        "tp=4",
        "pp=4",
        "dp=2,tp=2",
        "dp=2,pp=2",
        "tp=2,pp=2",
    ]
    assert [str(dims) for dims in topologies(1)] == ["dp=1"]
    assert [str(dims) for dims in topologies(3, axes="tp")] == ["tp=3"]
    with pytest.raises(UnknownAxis, match="known are dp"):
        list(topologies(4, axes=("dp", "xp")))


def test_large_worlds_answer_without_listing_ranks():
    world = 131_072
    plan = MeshPlan.build(
        ParallelDims(cp_size=4, tp_size=8, pp_size=16, ep_size=64, dp_replicate_size=8), world, node_size=8
    )
    rank = 77_777
    assert plan.shape("dense") == (16, 256, 4, 8)
    assert plan.coordinate(rank) == {"pp": 9, "dp": 126, "cp": 2, "tp": 1}
    assert plan.group("tp", rank) == tuple(range(77_776, 77_784))
    assert plan.group("pp", rank) == tuple(range(rank % 8192, world, 8192))
    assert plan.group("ep", rank) == tuple(range(rank - rank % 64, rank - rank % 64 + 64))
    assert plan.neighbour("pp", rank, 1) == rank + 8192
    assert len(plan.group("dp_cp", rank)) == 1024
    assert plan.axis_of(plan.group("cp", rank)) == "cp"
    assert not plan.crosses_nodes("tp")
    assert plan.crosses_nodes("cp")


def test_wrong_arguments_are_errors_of_meshlib():
    plan = plan_of("W8 tp=2")
    refusal(lambda: MeshPlan.build("tp=2", 8, order=5), "order", "5", '"pp", "dp", "cp", "tp"')
    refusal(lambda: plan.diff(3), "MeshPlan", "3")
    refusal(lambda: plan.group("tpp", 0), "did you mean tp?")
    for key in ("world_size", "sizes", "order", "ep_scope", "views"):
        for value in (5, [5], "x", {"x": 5}):
            refusal(lambda key=key, value=value: MeshPlan.from_json({**plan.to_json(), key: value}))
    refusal(lambda: MeshPlan.from_json({**plan.to_json(), "sizes": None}), "sizes", "None")
