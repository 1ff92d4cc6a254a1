"""Mesh cases: what is inferred from the sizes, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product

import numpy
import pytest
from cases import plan_of, refusal

from meshlib import MeshPlan, OfflineMesh, ParallelDims, TopologyError

INFERRED = [
    ("MESH-01", "W8 dp_replicate=2,dp_shard=-1", {"dp": 8, "dp_shard": 4}),
    ("MESH-02", "W8 tp=2,dp_replicate=2,dp_shard=-1", {"dp": 4, "dp_shard": 2}),
    ("MESH-03", "W8 cp=2,tp=2,dp_replicate=2,dp_shard=-1", {"dp": 2, "dp_shard": 2}),
    ("MESH-04", "W8 dp=-1,cp=4", {"dp": 2}),
    ("MESH-05", "W6 cp=2,pp=3", {"dp": 1}),
    ("MESH-06", "W8 dp_replicate=-1,dp_shard=4", {"dp": 8, "dp_replicate": 2}),
    ("MESH-08", "W8 tp=2,dp_replicate=-1,dp_shard=4", {"dp": 4, "dp_replicate": 1, "dp_shard": 4}),
    ("MESH-09", "W16 tp=2,dp_replicate=-1,dp_shard=4", {"dp": 8, "dp_replicate": 2, "dp_shard": 4}),
    ("MESH-10", "W4 tp=2,dp_replicate=-1,dp_shard=1", {"dp": 2, "dp_replicate": 2, "dp_shard": 1}),
    ("other axis inferred", "W12 dp=2,tp=-1", {"dp": 2, "tp": 6}),
    ("inferred without dp", "W8 tp=-1", {"dp": 1, "tp": 8}),
    ("inferred beside an FSDP domain", "W8 dp_replicate=2,tp=-1", {"dp": 2, "dp_shard": 1, "tp": 4}),
    ("ep inferred", "W8 tp=2,ep=-1", {"ep": 8, "edp_shard": 1}),
    ("edp_shard inferred", "W8 tp=2,ep=2,edp_shard=-1", {"ep": 2, "edp_shard": 4}),
    (
        "cp takes what is left",
        "W8 cp=-1,dp_replicate=2",
        {"dp": 1, "cp": 8, "dp_replicate": 2, "dp_shard": 4},
    ),
    ("nothing asked for", "W5 ", {"dp": 5, "dp_replicate": 1, "dp_shard": 5, "tp": 1, "ep": 1}),
]

REFUSED = [
    ("MESH-05 in 8", "W8 cp=2,pp=3", ["8 % 6", "cp * pp = 6 (2 * 3)", "valid pp: 1, 2, 4"]),
    (
        "MESH-07",
        "W8 dp_replicate=1,dp_shard=4",
        ["dp_replicate * dp_shard = 4", "(1 * 4)", "dp * cp = 8", "dp_replicate=2 or dp_shard=8"],
    ),
    ("MESH-11", "W6 dp_replicate=4", ["dp_replicate", "6 % 4", "valid dp_replicate: 1, 2, 3, 6"]),
    ("MESH-12", "W8 pp=3", ["pp", "8 % 3", "valid pp: 1, 2, 4, 8", "pp=2 or pp=4"]),
    ("MESH-13", "W8 dp_shard=4,tp=4", ["dp * cp = 2", "dp_shard = 4", "valid dp_shard: 1, 2", "dp_shard=2"]),
    ("MESH-14", "W10 tp=2,dp_replicate=2,dp_shard=2", ["dp * cp = 5", "dp_replicate * dp_shard = 4"]),
    ("MESH-15", "W10 dp_replicate=3,dp_shard=-1", ["10 % 3", "valid dp_replicate: 1, 2, 5, 10"]),
    ("MESH-16", "W8 tp=16", ["8 % 16", "valid tp: 1, 2, 4, 8", "tp=8"]),
    ("MESH-17", "W10 tp=4", ["10 % 4", "valid tp: 1, 2, 5, 10"]),
    (
        "MESH-18",
        "W12 tp=2,dp_replicate=-1,dp_shard=4",
        ["dp * cp = 6", "6 % 4", "valid dp_shard: 1, 2, 3, 6"],
    ),
    ("MESH-19", "W8 dp=2,tp=2", ["dp * cp * tp * pp = 4", "(2 * 1 * 2 * 1)", "8 ranks", "dp=4"]),
    ("MESH-21", "W8 dp=-1,tp=-1", ["2 sizes are -1", "dp, tp"]),
    ("MESH-22", "W8 ep=2,edp_shard=0", ["edp_shard", "at least 1"]),
    ("MESH-23 unknown axis", "W8 dq=2", ["'dq'", "known are dp, dp_replicate"]),
    ("MESH-23 twice", "W8 tp=2,tp=4", ["tp", "twice"]),
    ("no number", "W8 tp=two", ["tp", "'two'"]),
    ("no pair", "W8 tp", ["'tp'", "axis=size"]),
    ("semicolon", "W8 dp=2;tp=2", ["separate sizes by commas", "try dp=2,tp=2"]),
    ("spaces", "W8 dp=2 tp=2  pp=2", ["separate sizes by commas", "try dp=2,tp=2,pp=2"]),
    ("a float", "W8 dp=2.0", ["'2.0'", "try dp=2"]),
    ("a near axis", "W8 tpp=2", ["'tpp'", "did you mean tp?", "known are dp,"]),
    ("a field's name", "W8 dp_size=2", ["'dp_size'", "did you mean dp?"]),
    ("upper case", "W8 TP=2", ["'TP'", "did you mean tp?"]),
    ("stray comma", "W8 tp=2,", ["can't read ''"]),
    ("ep", "W8 ep=3", ["dp * cp * tp = 8", "8 % 3", "valid ep: 1, 2, 4, 8"]),
    ("ep beside edp_shard", "W8 ep=4,edp_shard=3", ["ep * edp_shard = 12 (4 * 3)", "8 % 12"]),
    ("no single edit", "W8 cp=3,pp=5", ["8 % 15", "cp=2,pp=4"]),
    (
        "beside an FSDP size",
        "W8 dp_replicate=3,tp=-1",
        ["dp_replicate = 3", "8 % 3", "dp_replicate=2"],
    ),
    (
        "cp beside an FSDP size",
        "W8 dp_replicate=3,cp=-1",
        ["dp * cp = 8", "8 % 3", "dp_replicate=2"],
    ),
    ("no single size fits", "W8 dp=16,tp=2,pp=3", ["= 96 (16 * 1 * 2 * 3)", "tp=2,pp=2,dp=2", "world of 96"]),
    ("inferred and indivisible", "W8 dp=3,tp=-1", ["8 % 3", "valid dp: 1, 2, 4, 8"]),
]


@pytest.mark.parametrize(("case", "sizes"), [pytest.param(c, s, id=i) for i, c, s in INFERRED])
def test_inferred(case, sizes):
    resolved = plan_of(case).dims.sizes()
    assert {axis: resolved[axis] for axis in sizes} == sizes


@pytest.mark.parametrize(("case", "fragments"), [pytest.param(c, f, id=i) for i, c, f in REFUSED])
def test_refused(case, fragments):
    error = refusal(lambda: plan_of(case), *fragments)
    assert isinstance(error, TopologyError)
    assert error.problems


def test_sizes_of_derived_axes__MESH_03():
    plan = plan_of("W8 cp=2,tp=2,dp_replicate=2,dp_shard=-1")
    sizes = {axis: plan.size(axis) for axis in ("batch", "loss", "fsdp_replicate", "fsdp_shard", "fsdp")}
    assert sizes == {"batch": 2, "loss": 4, "fsdp_replicate": 2, "fsdp_shard": 2, "fsdp": 2}


FIELDS = ["dp_size", "dp_replicate_size", "dp_shard_size", "cp_size", "tp_size", "pp_size", "ep_size"]


@pytest.mark.parametrize("field", [*FIELDS, "edp_shard_size"])
@pytest.mark.parametrize("value", [0, -2, True, False, 2.0, "2", numpy.bool_(True), numpy.float64(2)])
def test_no_size__MESH_20(field, value):
    error = refusal(lambda: ParallelDims(**{field: value}), field.removesuffix("_size"))
    assert repr(value) in str(error) or str(value) in str(error)


@pytest.mark.parametrize("field", [*FIELDS, "edp_shard_size"])
def test_integer_types_are_sizes__MESH_20(field):
    dims = ParallelDims(**{field: numpy.int64(2)})
    assert type(getattr(dims, field)) is int
    assert getattr(dims, field) == 2


@pytest.mark.parametrize("world_size", [0, -1, True, 4.0, "4", None])
def test_no_world_size(world_size):
    refusal(lambda: MeshPlan.build("tp=1", world_size), "world_size", repr(world_size))


@pytest.mark.parametrize(
    ("names", "shape", "fragment"),
    [
        (("a", "a"), (2, 2), "twice"),
        (("a", "b"), (2,), "2 names"),
        (("a",), (2, 3), "1 name "),
        (("a",), (-4,), "at least 1"),
        (("a",), (0,), "at least 1"),
        (("a",), (True,), "at least 1"),
        (("a",), (2.0,), "whole numbers"),
    ],
)
def test_names_and_shapes_that_do_not_match__MESH_23(names, shape, fragment):
    error = refusal(lambda: OfflineMesh(names, shape), fragment)
    assert isinstance(error, ValueError)


def test_every_problem_comes_in_one_error():
    error = refusal(lambda: plan_of("W8 tp=0,foo=2,pp=x,cp=-3"), "tp", "'foo'", "'x'", "cp")
    assert len(error.problems) == 4
    error = refusal(lambda: plan_of("W8 dp=8,dp_replicate=3,ep=5"), "8 % 3", "8 % 5")
    assert [problem.axis for problem in error.problems] == ["dp_replicate", "ep"]
    error = refusal(lambda: plan_of("W8 dp=2,tp=2,dp_replicate=3,ep=3"), "world 8", "2 % 3", "4 % 3")
    assert len(error.problems) == 3


def test_size_one_axes_answer__MESH_24():
    plan = plan_of("W8 tp=8")
    for axis in ("dp", "cp", "pp", "ep", "dp_cp", "fsdp", "batch", "loss"):
        for rank in range(8):
            assert plan.size(axis) == 1
            assert plan.group(axis, rank) == (rank,)
            assert plan.local_rank(axis, rank) == 0
            assert plan.is_first(axis, rank)
            assert plan.is_last(axis, rank)
            assert plan.neighbour(axis, rank, 1) == rank
            assert plan.neighbour(axis, rank, 1, wrap=False) is None


def one_or_two():
    """All patterns of dp, cp, tp, pp, dp_replicate and ep at 1 or 2 that are valid."""
    for dp, cp, tp, pp, replicate, ep in product((1, 2), repeat=6):
        if (dp * cp) % replicate == 0 and (dp * cp * tp) % ep == 0:
            yield f"dp={dp},cp={cp},tp={tp},pp={pp},dp_replicate={replicate},ep={ep}", dp * cp * tp * pp


def test_sweep_of_ones_and_twos__MESH_24():
    patterns = list(one_or_two())
    assert len(patterns) == 54
    for topology, world_size in patterns:
        plan = MeshPlan.build(topology, world_size)
        for axis in plan.known_axes:
            for rank in range(world_size):
                assert rank in plan.group(axis, rank)
                assert len(plan.group(axis, rank)) == plan.size(axis)


def test_global_batch__MESH_25():
    plan = plan_of("W8 tp=2,pp=2,ep=2")
    assert plan.size("dp") == 2
    assert 1 * 4 * plan.size("batch") == 8
    assert plan.size("cp") * plan.size("tp") * plan.size("pp") == 4


def test_replica_scope_ties_edp_shard_and_ep():
    plan = MeshPlan.build("tp=2,ep=2,dp_replicate=2", 16, ep_scope="replica")
    assert plan.dims.edp_shard_size == 4
    assert plan.shape("expert") == (1, 2, 4, 2)
    refusal(
        lambda: MeshPlan.build("tp=2,ep=2,edp_shard=2,dp_replicate=2", 16, ep_scope="replica"),
        "edp_shard * ep = 4 (2 * 2)",
        "fsdp_shard * tp = 8 (4 * 2)",
        "edp_shard=4",
    )
    refusal(
        lambda: MeshPlan.build("tp=2,ep=3,dp_replicate=2", 16, ep_scope="replica"),
        "fsdp_shard * tp = 8 (4 * 2)",
        "8 % 3",
        "valid ep: 1, 2, 4, 8",
    )
    assert MeshPlan.build("tp=2,ep=-1,dp_replicate=2", 16, ep_scope="replica").dims.ep_size == 8
    refusal(lambda: MeshPlan.build("tp=2", 16, ep_scope="pod"), "ep_scope", "'pod'", "stage", "replica")


@pytest.mark.parametrize("text", ["", "dp=4,tp=2,pp=2,ep=2", "dp=-1,cp=2", "dp_shard=4,edp_shard=1", "dp=1"])
def test_text_round_trip(text):
    dims = ParallelDims.parse(text)
    assert str(dims) == text
    assert ParallelDims.parse(str(dims)) == dims


def test_text_with_spaces_and_ones_reads_the_same():
    assert ParallelDims.parse(" dp = 2 , cp=1,tp=2 ") == ParallelDims(dp_size=2, tp_size=2)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("tp=2", 2),
        ("dp_replicate=2,dp_shard=3", 6),
        ("dp_replicate=2,cp=4", 4),
        ("dp=2,tp=2,pp=3", 12),
        ("", 1),
    ],
)
def test_own_world_size(text, ranks):
    dims = ParallelDims.parse(text)
    assert dims.own_world_size() == ranks
    dims.resolve(ranks)


def test_own_world_size_needs_every_size():
    refusal(lambda: ParallelDims.parse("tp=-1").own_world_size(), "tp=-1", "world_size")


REPLICA = {"ep_scope": "replica"}


@pytest.mark.parametrize(
    ("text", "shard", "ep"),
    [
        ("tp=2,ep=2,dp_replicate=2", 2, 2),
        ("tp=2,ep=-1,dp_replicate=2", 1, 4),
        ("tp=2,ep=2,edp_shard=-1,dp_replicate=2", 2, 2),
    ],
)
def test_resolved_sizes_take_another_expert_scope(text, shard, ep):
    dims = ParallelDims.parse(text)
    for resolved in (dims.resolve(8), pickle.loads(pickle.dumps(dims.resolve(8).resolve(8)))):
        plan = MeshPlan.build(resolved, 8, **REPLICA)
        assert plan == MeshPlan.build(dims, 8, **REPLICA)
        assert (plan.size("edp_shard"), plan.size("ep"), plan.size("edp_replicate")) == (shard, ep, 2)
        assert MeshPlan.build(plan.dims, 8) == MeshPlan.build(dims, 8)
        assert MeshPlan.from_json(plan.to_json()) == plan
        assert ParallelDims.parse(str(resolved)) == resolved
        assert "request" not in repr(resolved)


def test_a_given_edp_shard_stays_under_every_scope():
    for dims in (
        ParallelDims.parse("tp=2,ep=2,edp_shard=1,dp_replicate=2"),
        replace(ParallelDims.parse("tp=2,ep=2,dp_replicate=2").resolve(8), edp_shard_size=1),
    ):
        for given in (dims, dims.resolve(8)):
            refusal(
                lambda given=given: MeshPlan.build(given, 8, **REPLICA),
                "edp_shard * ep = 2 (1 * 2)",
                "fsdp_shard * tp = 4 (2 * 2)",
                "ep=4",
                "edp_shard=2",
                "leave edp_shard out",
            )


@pytest.mark.parametrize(
    ("options", "fix"), [({}, "try ep=2,edp_shard=2"), (REPLICA, "try ep=2,edp_shard=2")]
)
def test_the_suggested_expert_sizes_fit(options, fix):
    refusal(lambda: MeshPlan.build("tp=2,dp=2,ep=3,edp_shard=3", 4, **options), fix)
    assert MeshPlan.build("tp=2,dp=2," + fix.removeprefix("try "), 4, **options).size("ep") == 2


def test_suggestions_for_python_values():
    for value in (2.0, "2", numpy.float64(2)):
        refusal(lambda value=value: ParallelDims(tp_size=value), "try tp=2")
    for value in (True, "two", 0.5, float("inf"), [2]):
        refusal(lambda value=value: ParallelDims(tp_size=value), "try tp=1")
    refusal(lambda: ParallelDims.of({"tpp_size": 2}), "tpp_size", "did you mean tp_size?")
