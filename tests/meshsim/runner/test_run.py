"""``meshsim.run``: what it checks, what it asks of a world, what it hands back."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshsim
from meshlib import MeshError, ParallelDims, TopologyError
from meshsim import CannotRun, RunFailed, UsageError, VerdictKind


def ten_times(rank: Any) -> int:
    return 10 * rank


def fails_on_one(rank: Any) -> int:
    if rank == 1:
        raise ValueError("one is not enough")
    return rank


def test_returns_are_in_rank_order(world: Any) -> None:
    result = meshsim.run(ten_times, "dp=2,tp=2", backend=world)
    assert result.ok
    assert result.returns == [0, 10, 20, 30]
    assert result.verdict.kind == VerdictKind.PASSED
    assert (result.backend, result.topology, result.world_size) == ("calling", "dp=2,tp=2", 4)
    assert result.duration == 1.25
    assert len(result.trace) == 4


def test_a_failed_scenario_is_a_result(world: Any) -> None:
    result = meshsim.run(fails_on_one, "dp=2", backend=world)
    assert not result.ok
    assert result.failed
    assert result.verdict.kind == VerdictKind.RAISED
    assert result.verdict.ranks == (1,)
    assert "one is not enough" in result.verdict.summary
    assert result.returns == [0, None]


def test_raises_makes_it_an_exception_with_the_ranks_own_as_its_cause(world: Any) -> None:
    with pytest.raises(RunFailed, match="one is not enough") as caught:
        meshsim.run(fails_on_one, "dp=2", backend=world, raises=True)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.result.verdict.ranks == (1,)  # type: ignore[attr-defined]
    assert meshsim.run(ten_times, "dp=2", backend=world, raises=True).ok


@pytest.mark.parametrize(
    ("topology", "ranks"),
    [
        (None, 1),
        ("", 1),
        ("tp=2,pp=3", 6),
        ("dp=4,tp=2", 8),
        ("dp_replicate=2,dp_shard=4", 8),
        ("dp_shard=4,cp=2", 4),
        ("dp_replicate=2,dp_shard=2,cp=2,tp=2", 8),
        ("cp=4,dp_shard=2", 4),
        ("dp=-1,tp=2", 2),
    ],
)
def test_without_a_world_size_the_topology_makes_the_world(
    world: Any, topology: str | None, ranks: int
) -> None:
    assert meshsim.run(ten_times, topology, backend=world).world_size == ranks


def test_a_world_size_fills_in_dp(world: Any) -> None:
    result = meshsim.run(ten_times, "tp=2", world_size=8, backend=world)
    assert world.requests[0].plan.size("dp") == 4
    assert result.topology == "tp=2"
    assert meshsim.run(ten_times, world_size=3, backend=world).topology == "dp=3"


def test_dims_are_taken_as_they_are(world: Any) -> None:
    assert meshsim.run(ten_times, ParallelDims(tp_size=2), backend=world).topology == "tp=2"


def test_the_request_carries_all_options(world: Any) -> None:
    meshsim.run(
        ten_times,
        "dp=2,tp=2",
        backend=world,
        seed=7,
        timeout=3,
        isolate=["package.module"],
        profile="nccl",
        params={"lr": 0.1},
        faults=["rank=3:crash@all_reduce#5"],
        order=("tp", "dp"),
        node_size=2,
        shuffle_reductions=True,
    )
    request = world.requests[0]
    assert (request.seed, request.timeout, request.profile) == (7, 3.0, "nccl")
    assert (request.isolate, dict(request.params)) == (("package.module",), {"lr": 0.1})
    assert [str(fault) for fault in request.faults] == ["rank=3:crash@all_reduce#5"]
    assert request.plan.group("tp", 0) == (0, 2)  # tp is the outermost
    assert request.plan.node_size == 2
    assert request.shuffle_reductions


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"seed": -1}, "seed .* -1"),
        ({"seed": 1.5}, "seed .* 1.5"),
        ({"seed": True}, "seed .* True"),
        ({"timeout": 0}, "timeout .* 0"),
        ({"timeout": math.inf}, "timeout .* inf"),
        ({"timeout": "60"}, "timeout .* '60'"),
        ({"world_size": 0}, "world_size .* 0"),
        ({"world_size": 2.0}, "world_size .* 2.0"),
        ({"params": [1]}, r"params .* \[1\]"),
        ({"params": {1: 2}}, "params .* {1: 2}"),
        ({"isolate": "package.module"}, "isolate .* 'package.module'"),
        ({"profile": "mpi"}, "profile 'mpi' is unknown; known are nccl, hccl"),
        ({"faults": "rank=0:crash@*"}, "faults must be a list"),
        ({"faults": ["rank=9:crash@*"]}, "rank=9 is out of range"),
        ({"backend": "mpi"}, "backend 'mpi' is unknown; known are fake, gloo, nccl, hccl and auto"),
        ({"backend": 3}, "backend must be a backend's name or a world"),
        ({"record": "/nowhere/at/all.json"}, "can't write /nowhere/at/all.json"),
    ],
)
def test_wrong_options_are_refused_by_name(world: Any, options: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        meshsim.run(ten_times, **{"backend": world, **options})
    assert not world.requests


@pytest.mark.parametrize("scenario", [3, None, [ten_times]])
def test_what_is_no_scenario_is_refused(world: Any, scenario: Any) -> None:
    with pytest.raises(UsageError, match="scenario must be a function"):
        meshsim.run(scenario, backend=world)


@pytest.mark.parametrize(
    ("topology", "size"), [("dp=2,tp=2", 8), ("tp=3", 4), ("tp=-1", None), ("tp=two", None)]
)
def test_a_topology_that_does_not_fit_is_an_exception(world: Any, topology: str, size: int | None) -> None:
    with pytest.raises(TopologyError, match=r"tp|dp"):
        meshsim.run(ten_times, topology, world_size=size, backend=world)


def test_a_topology_of_another_type_is_an_exception(world: Any) -> None:
    with pytest.raises(MeshError, match=r"'dp=2,tp=2'"):
        meshsim.run(ten_times, 4, backend=world)  # type: ignore[arg-type]


def test_a_world_that_can_not_run_here_says_why(world: Any) -> None:
    world.missing = "there is no such device"
    with pytest.raises(CannotRun, match="calling: there is no such device"):
        meshsim.run(ten_times, backend=world)


def test_a_scenario_can_decline_a_topology(world: Any) -> None:
    def scenario(rank: Any) -> None:
        raise AssertionError("must not be run")

    scenario.unsupported = lambda plan: "needs tp" if plan.size("tp") == 1 else None  # type: ignore[attr-defined]
    result = meshsim.run(scenario, "dp=2", backend=world)
    assert result.not_run
    assert not result.ok
    assert not result.failed
    assert (result.verdict.kind, result.verdict.summary) == (VerdictKind.NOT_RUN, "needs tp")
    assert result.returns == [None, None]
    assert len(result.trace) == 2
    assert not world.requests


@pytest.mark.parametrize("kind", [UsageError, CannotRun])
def test_wrong_use_that_every_rank_of_the_scenario_sees_is_passed_on(
    world: Any, kind: type[Exception]
) -> None:
    def scenario(rank: Any) -> None:
        raise kind("parameter break='x' is unknown")

    with pytest.raises(kind, match="parameter break='x' is unknown"):
        meshsim.run(scenario, "dp=2", backend=world)


def test_what_one_rank_says_alone_is_no_wrong_use(world: Any) -> None:
    def scenario(rank: Any) -> None:
        if rank == 0:
            raise UsageError("only here")

    assert meshsim.run(scenario, "dp=2", backend=world).verdict.ranks == (0,)


def test_record_writes_a_recording(world: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    result = meshsim.run(ten_times, "dp=2", backend=world, record=file)
    recorded = json.loads(file.read_text())
    assert recorded["format"] == "meshsim recording"
    assert recorded["returns"] == [0, 10]
    assert recorded["plan"]["digest"] == result.plan.digest


def test_importing_meshsim_does_not_import_torch() -> None:
    program = "import sys, meshsim; dir(meshsim); meshsim.UsageError; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_is_there_and_no_other() -> None:
    for name in meshsim.__all__:
        assert getattr(meshsim, name) is not None
    assert set(meshsim.__all__) == set(meshsim._PUBLIC)
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        meshsim.runs  # noqa: B018


async def _coroutine(ctx):
    raise AssertionError("never runs")


def _generator(ctx):
    yield ctx


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (_coroutine, "is an async function: calling it doesn't run its body"),
        (_generator, "is a generator: calling it doesn't run its body"),
        (lambda: 1, "must take one argument, the rank's context"),
        (lambda ctx, other: 1, "must take one argument, the rank's context"),
    ],
    ids=["async", "generator", "no argument", "two arguments"],
)
def test_a_scenario_that_cant_be_called_with_a_context_is_wrong_use(scenario, message):
    with pytest.raises(meshsim.UsageError, match=message):
        meshsim.run(scenario, "dp=2")
