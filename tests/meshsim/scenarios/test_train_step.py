"""train_step on topologies that cover the axes and their pairs, in the fake world and on gloo."""

from __future__ import annotations

import pytest

import meshsim
from meshsim import RunResult
from meshsim.scenarios.train_step.breakage import Breakage

ALONE = ["dp=1", "dp=3", "cp=3", "tp=3", "pp=3", "dp=2,dp_replicate=2", "dp=3,ep=3", "tp=2,ep=2"]
PAIRS = [
    "cp=2,tp=2",
    "tp=2,pp=2",
    "dp=2,pp=2,ep=2",
    "cp=2,dp_replicate=2,pp=2",
    "dp=2,tp=2,ep=4",
    "cp=2,tp=2,ep=2",
    "dp=4,ep=2,edp_shard=2",
    "dp=4,dp_replicate=2,ep=2",
]
THREE_AND_MORE = [
    "dp=2,cp=2,tp=2,ep=2,edp_shard=2",
    "cp=2,tp=2,pp=2,ep=4,dp_replicate=2",
    "dp=2,tp=2,pp=2,ep=2,dp_replicate=2",
]


def assert_passed(result: RunResult) -> None:
    assert result.ok, result.verdict.summary


@pytest.mark.parametrize("topology", [*ALONE, *PAIRS, *THREE_AND_MORE])
def test_equals_a_single_process(topology: str) -> None:
    result = meshsim.run("train_step", topology)
    assert_passed(result)
    first = result.returns[0]
    assert len(first["loss"]) == len(first["grad_norm"]) == 3
    assert all(returned == first for returned in result.returns)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("world_size", range(1, 9))
def test_equals_a_single_process_on_every_topology(world_size: int) -> None:
    swept = meshsim.sweep(
        "train_step",
        world_sizes=[world_size],
        axes=["dp", "dp_replicate", "cp", "tp", "pp", "ep", "edp_shard"],
    )
    assert not swept.not_run
    assert swept.ok, "\n".join(result.verdict.summary for result in swept.failed)


@pytest.mark.parametrize("topology", ["dp=2,tp=2", "cp=2,pp=2,ep=2"])
def test_on_gloo_as_in_the_fake_world(topology: str) -> None:
    real = meshsim.run("train_step", topology, backend="gloo")
    assert_passed(real)
    fake = meshsim.run("train_step", topology)
    for quantity, values in real.returns[0].items():
        assert values == pytest.approx(fake.returns[0][quantity], rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"params": {"dtype": "float32"}},
        {"params": {"schedule": "1F1B"}},
        {"ep_scope": "replica"},
        {"order": ("tp", "cp", "dp", "pp")},
        {"seed": 7},
    ],
    ids=["float32", "1F1B", "ep_scope=replica", "tp outermost", "seed"],
)
def test_other_settings(options: dict) -> None:
    assert_passed(meshsim.run("train_step", "dp=2,tp=2,pp=2,ep=2", **options))


def test_seed_makes_other_weights_and_data() -> None:
    results = [meshsim.run("train_step", "dp=1", seed=seed) for seed in (0, 1)]
    assert results[0].returns[0]["loss"] != pytest.approx(results[1].returns[0]["loss"], rel=1e-3)


WRONG_ON = {
    Breakage.GRAD_MEAN_OVER_DP: ["cp=2", "dp=2,cp=2", "cp=2,tp=2,pp=2"],
    Breakage.NORM_COUNTS_REPLICATED: ["tp=2", "dp=2,tp=2"],
    Breakage.EXPERTS_NOT_REDUCED: ["dp=4,ep=2", "tp=4,ep=2"],
    Breakage.LOCAL_CAUSAL_MASK: ["cp=2", "cp=2,tp=2"],
}
HARMLESS_ON = {
    Breakage.GRAD_MEAN_OVER_DP: "dp=2",
    Breakage.NORM_COUNTS_REPLICATED: "dp=2",
    Breakage.EXPERTS_NOT_REDUCED: "dp=2,ep=2",
    Breakage.LOCAL_CAUSAL_MASK: "dp=2",
}
FOUND_AS = {Breakage.LOCAL_CAUSAL_MASK: "loss"}


@pytest.mark.parametrize(
    ("mistake", "topology"),
    [(mistake, topology) for mistake, topologies in WRONG_ON.items() for topology in topologies],
    ids=lambda value: value.value if isinstance(value, Breakage) else value,
)
def test_mistake_is_found(mistake: Breakage, topology: str) -> None:
    result = meshsim.run("train_step", topology, params={"break": mistake.value})
    assert result.verdict.kind is meshsim.VerdictKind.RAISED
    assert f"on topology {topology}" in result.verdict.summary
    quantity = FOUND_AS.get(mistake, "gradient norm")
    failures = [report.failure for report in result.ranks if report.failure is not None]
    assert failures
    for failure in failures:
        assert failure.type.endswith("AssertionError")
        assert failure.message.startswith(f"{quantity} at step 0: expected ")
        assert ", got " in failure.message


def test_every_mistake_is_tried() -> None:
    mistakes = set(Breakage) - {Breakage.NOTHING}
    assert set(WRONG_ON) == set(HARMLESS_ON) == mistakes


@pytest.mark.parametrize("mistake", list(HARMLESS_ON), ids=lambda mistake: mistake.value)
def test_mistake_hides_where_its_axis_isnt_split(mistake: Breakage) -> None:
    assert_passed(meshsim.run("train_step", HARMLESS_ON[mistake], params={"break": mistake.value}))


def test_mistake_is_found_on_gloo() -> None:
    result = meshsim.run("train_step", "cp=2", backend="gloo", params={"break": "grad_mean_over_dp"})
    assert result.verdict.kind is meshsim.VerdictKind.RAISED
    assert "gradient norm at step 0" in result.verdict.summary


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"break": "nonsense"}, "break='nonsense' is unknown; known are nothing, grad_mean_over_dp"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16' is unknown; known are float64, float32"),
        ({"schedule": "DualPipe"}, "schedule='DualPipe' is unknown; known are GPipe, 1F1B"),
        ({"step": 3}, "there is no parameter step; there is dtype, schedule, break"),
    ],
)
def test_wrong_parameters(params: dict, said: str) -> None:
    with pytest.raises(meshsim.UsageError) as caught:
        meshsim.run("train_step", "dp=1", params=params)
    assert said in str(caught.value)
