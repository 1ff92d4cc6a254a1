"""Every built-in scenario passes on topologies that cover the axes, and finds the mistakes it is for."""

from __future__ import annotations

import pytest

import meshsim
from meshsim import VerdictKind
from meshsim.scenarios import BUILT_IN

# train_step has a file of its own.
LIBRARY = sorted(set(BUILT_IN) - {"train_step"})

TOPOLOGIES = [
    "dp=1",
    "dp=3",
    "dp=4,dp_replicate=2",
    "cp=3",
    "tp=3",
    "pp=3",
    "dp=2,tp=2,ep=2",
    "cp=2,dp_replicate=2,pp=2",
    "dp=2,cp=2,tp=2,ep=4",
    "tp=2,pp=2,ep=2",
]
ON_GLOO = ["dp=2,tp=2,ep=2", "cp=2,pp=2"]
UNSUPPORTED = {("moe", topology) for topology in (*TOPOLOGIES, *ON_GLOO) if "ep=" not in topology}

MISTAKES = [
    ("mesh_facts", "crossed_axes", "dp=2,tp=2", "ranks of the dp group"),
    ("collectives", "max_for_sum", "dp=2", "all_reduce sum on dp"),
    ("data_sharding", "by_global_rank", "dp=2,dp_replicate=2,cp=2", "how often dp x cp ranks"),
    ("data_sharding", "by_global_rank", "dp=2,tp=3", "what tp peers see"),
    ("random_seeds", "seed_plus_rank", "dp=2", "weights: the same random numbers as rank"),
    ("random_seeds", "seed_plus_rank", "tp=2", "dropout: the same random numbers as rank"),
    ("grad_sync", "mean_of_means", "dp=2", "gradient"),
    ("grad_sync", "over_dp_only", "cp=2", "gradient"),
    ("grad_norm", "count_replicated", "tp=2", "gradient norm"),
    ("fsdp_step", "shard_axis_only", "dp=2,dp_replicate=2", "of the replicas"),
    ("tensor_parallel", "local_norm_grad", "tp=2", "gradient of norm"),
    ("context_parallel_attention", "contiguous_mask", "cp=2", "attention of this rank's positions"),
    ("pipeline", "mean_of_sums", "pp=2", "gradient of layer"),
    ("moe", "edp_shard_only", "dp=4,ep=2", "experts' gradients"),
    ("redistribute", "shape_from_shard", "dp=2", "shape on dp"),
    ("checkpoint", "without_resharding", "dp=2", "own shard loaded as"),
]


def check(scenario: str, topology: str, backend: str) -> None:
    result = meshsim.run(scenario, topology, backend=backend)
    if (scenario, topology) in UNSUPPORTED:
        assert result.not_run
        assert "ep above 1" in result.verdict.summary
    else:
        assert result.ok, result.verdict.summary
        assert not result.verdict.warnings


@pytest.mark.parametrize("scenario", LIBRARY)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_passes(scenario: str, topology: str) -> None:
    check(scenario, topology, "fake")


@pytest.mark.parametrize("scenario", LIBRARY)
@pytest.mark.parametrize("topology", ON_GLOO)
def test_passes_on_gloo(scenario: str, topology: str) -> None:
    check(scenario, topology, "gloo")


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", LIBRARY)
def test_passes_on_every_topology(scenario: str) -> None:
    swept = meshsim.sweep(scenario, world_sizes=range(1, 9))
    assert swept.ok, "\n".join(result.verdict.summary for result in swept.failed)


@pytest.mark.parametrize(("scenario", "mistake", "topology", "said"), MISTAKES)
def test_mistake_is_found(scenario: str, mistake: str, topology: str, said: str) -> None:
    result = meshsim.run(scenario, topology, params={"break": mistake})
    assert result.verdict.kind is VerdictKind.RAISED, result.verdict.summary
    failures = [report.failure for report in result.ranks if report.failure is not None]
    assert failures
    for failure in failures:
        assert failure.type.endswith("AssertionError")
        assert said in failure.message
        assert f"of topology {topology}" in failure.message
        assert "expected " in failure.message


def test_every_scenario_has_a_mistake() -> None:
    assert {scenario for scenario, *_ in MISTAKES} == set(LIBRARY)


@pytest.mark.parametrize("scenario", LIBRARY)
def test_unknown_parameters_are_the_callers_mistake(scenario: str) -> None:
    topology = "dp=2,ep=2"
    with pytest.raises(meshsim.UsageError, match=r"break='nonsense' is unknown; known are nothing, "):
        meshsim.run(scenario, topology, params={"break": "nonsense"})
    with pytest.raises(meshsim.UsageError, match="there is no parameter brake; there is break"):
        meshsim.run(scenario, topology, params={"brake": "nothing"})


@pytest.mark.parametrize("scenario", ["mesh_facts", "collectives", "grad_sync"])
@pytest.mark.parametrize(
    "options", [{"order": ("tp", "cp", "dp", "pp")}, {"ep_scope": "replica"}, {"seed": 3}], ids=str
)
def test_other_rank_orders_scopes_and_seeds(scenario: str, options: dict) -> None:
    result = meshsim.run(scenario, "dp=2,tp=2,pp=2,ep=2", **options)
    assert result.ok, result.verdict.summary
