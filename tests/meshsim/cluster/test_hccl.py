"""HCCL against a stand-in torch_npu: a device whose memory is the host's. Nothing here ran on Ascend."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import Ended, Processes

import meshsim
from meshsim.worlds.cluster.backends import cluster_backend

STANDIN = str(Path(__file__).parent / "standin")

SCENARIOS = '''
import torch
import torch.distributed as dist


def device_type(ctx):
    return ctx.device.type


def averages(ctx):
    """x = r + 1 on four ranks: the mean is 2.5."""
    x = torch.full((4,), float(ctx.rank + 1), device=ctx.device)
    mean, later = x.clone(), x.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    work = dist.all_reduce(later, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    dist.all_reduce(x)
    dist.barrier()
    return mean, later[0].item(), x


def cpu_tensor(ctx):
    dist.all_reduce(torch.ones(2))


def objects(ctx):
    dist.all_gather_object([None] * ctx.world_size, ctx.rank)


def doubles(ctx):
    dist.all_reduce(torch.ones(2, dtype=torch.float64, device=ctx.device))
'''


DRIVER = """
import json
import meshsim

told = {}
for name in ("device_type", "averages", "cpu_tensor", "objects", "doubles"):
    record = "recorded.json" if name == "averages" else None
    result = meshsim.run(f"npu_scenarios.py::{name}", "dp=4", backend="hccl", record=record)
    verdict = result.verdict
    told[name] = [verdict.kind.value, verdict.summary, list(verdict.ranks), repr(result.returns)]
print(json.dumps(told))
"""


def npu_job(
    processes: Processes, ranks: int, arguments: list[str], visible: str | None = None
) -> list[Ended]:
    (processes.folder / "npu_scenarios.py").write_text(SCENARIOS)
    (processes.folder / "driver.py").write_text(DRIVER)
    path = os.pathsep.join([STANDIN, os.environ.get("PYTHONPATH", "")])
    return processes.job(
        ranks,
        arguments,
        each=lambda rank: {"PYTHONPATH": path, "ASCEND_RT_VISIBLE_DEVICES": visible or str(rank)},
    )


@pytest.fixture(scope="module")
def told(module_processes: Processes) -> dict[str, Any]:
    ended = npu_job(module_processes, 4, ["driver.py"])
    assert [one.code for one in ended] == [0] * 4, ended[0].err
    found: dict[str, Any] = json.loads(ended[0].out.splitlines()[-1])
    return found


def test_scenarios_get_the_npu(told: dict[str, Any]) -> None:
    assert told["device_type"][3] == "['npu', 'npu', 'npu', 'npu']"


@pytest.mark.parametrize("case", ["CLUS-03"])
def test_average_is_the_sum_divided_where_the_backend_has_none(
    told: dict[str, Any], module_processes: Processes, case: str
) -> None:
    assert told["averages"][0] == "passed"
    recorded = json.loads((module_processes.folder / "recorded.json").read_text())
    for mean, later, total in recorded["returns"]:
        assert (mean["statistics"]["min"], mean["statistics"]["max"], later) == (2.5, 2.5, 2.5)
        assert (total["statistics"]["max"], total["device"]) == (10.0, "cpu")
    # The trace has what the scenario asked for.
    assert [call.get("reduce_op") for call in recorded["trace"][0]] == ["AVG", "AVG", "SUM", None]


def test_recording_of_an_npu_replays_in_the_fake_world(
    told: dict[str, Any], module_processes: Processes
) -> None:
    from meshsim.scenarios import load

    averages = load(f"{module_processes.folder / 'npu_scenarios.py'}::averages")
    replayed = meshsim.replay(module_processes.folder / "recorded.json", scenario=averages)
    assert replayed.ok, replayed


@pytest.mark.parametrize("case", ["CLUS-04"])
def test_what_hccl_lacks_is_not_run(told: dict[str, Any], case: str) -> None:
    assert told["doubles"][0] == "not run"
    assert told["doubles"][1].startswith("unsupported: HCCL has all_reduce with SUM of float64 on its newest")


@pytest.mark.parametrize("case", ["CLUS-06"])
def test_cpu_tensors_and_objects_are_refused_on_every_rank(told: dict[str, Any], case: str) -> None:
    kind, summary, ranks, _ = told["cpu_tensor"]
    assert (kind, ranks) == ("unsupported", [0, 1, 2, 3])
    assert "HCCL has no backend for device cpu: move the tensor to npu" in summary
    kind, summary, ranks, _ = told["objects"]
    assert (kind, ranks) == ("unsupported", [0, 1, 2, 3])
    assert "HCCL can't all_gather_object: the group has no backend for device cpu" in summary


@pytest.mark.long
@pytest.mark.parametrize("case", ["CLUS-01"])
def test_two_ranks_on_one_npu_fail_before_anything_starts(processes: Processes, case: str) -> None:
    ended = npu_job(processes, 2, ["-m", "meshsim", "run", "mesh_facts", "-b", "hccl"], visible="4")
    assert [one.code for one in ended] == [3, 3]
    assert "ranks 0, 1 are both on host host-a, device 4" in ended[0].err


def test_without_torch_npu_the_reason_is_told() -> None:
    assert cluster_backend("hccl").problem() == "torch_npu is not installed"


def test_without_nccl_the_reason_is_told() -> None:
    import torch.distributed as dist

    problem = cluster_backend("nccl").problem()
    if dist.is_nccl_available():
        assert problem == "" or "sees no CUDA device" in problem
    else:
        assert "was built without NCCL: install its CUDA build" in problem
