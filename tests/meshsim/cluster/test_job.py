"""Runs in a job: the same results as elsewhere, with host and device, and exit codes on every rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cluster_jobs import Ended, Processes

import meshsim

SCENARIOS = """
import os
import signal
import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class Point:
    rank: int


def sums(ctx):
    x = torch.full((3,), float(ctx.rank), device=ctx.device)
    dist.all_reduce(x, group=ctx.mesh.device_mesh.get_group("dp"))
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return x, [int(os.environ[name]) for name in names], Point(ctx.rank)


def portable(ctx):
    x = torch.full((3,), ctx.rank + 0.1, device=ctx.device)
    dist.all_reduce(x, group=ctx.mesh.device_mesh.get_group("dp"))
    dist.broadcast(x, src=1)
    return x


def count_mismatch(ctx):
    dist.all_reduce(torch.ones(4 + (ctx.rank == 2)))


def raises(ctx):
    if ctx.rank == 3:
        raise ValueError("three")
    dist.barrier()


def skips(ctx):
    if ctx.rank != 1:
        dist.all_reduce(torch.ones(1))


def killed(ctx):
    dist.barrier()
    if ctx.rank == int(ctx.params.get("rank", 3)):
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hangs(ctx):
    if ctx.rank == 2:
        threading.Event().wait()
    dist.barrier()


def all_wait(ctx):
    dist.recv(torch.ones(1), src=(ctx.rank + 1) % ctx.world_size)


def leaves(ctx):
    if ctx.rank == 1:
        raise SystemExit(7)
    dist.barrier()
"""

DRIVER = """
import json
import sys

import meshsim
from job_scenarios import *

if __name__ == "__main__":
    told = {}
    plan = [
        ("sums", sums, "dp=2,tp=2"),
        ("portable", portable, "dp=2,tp=2"),
        ("own dp", sums, "tp=2"),
        ("fewer ranks", sums, "dp=3"),
        ("count_mismatch", count_mismatch, "dp=4"),
        ("raises", raises, "dp=4"),
        ("skips", skips, "dp=4"),
        ("leaves", leaves, "dp=4"),
        ("all_wait", all_wait, "dp=4"),
        ("sums again", sums, "dp=4"),
    ]
    for name, scenario, topology in plan:
        record = "recorded.json" if name == "portable" else None
        result = meshsim.run(scenario, topology, backend="gloo", timeout=20, record=record)
        told[name] = {
            "json": result.to_json() if result.is_complete else None,
            "kind": result.verdict.kind.value,
            "summary": result.verdict.summary,
            "ranks": result.verdict.ranks,
            "waiting": result.verdict.waiting,
            "returns": repr(result.returns),
            "topology": result.plan.topology,
        }
    for name, wrong in (("too many", "dp=8"), ("misfit", "tp=3")):
        try:
            meshsim.run(sums, wrong, backend="gloo")
        except Exception as error:
            told[name] = [type(error).__name__, str(error)]
    print(json.dumps(told))
    sys.stdout.flush()
    sys.exit(0)
"""


@pytest.fixture(scope="module")
def folder(module_processes: Processes) -> Path:
    (module_processes.folder / "job_scenarios.py").write_text(SCENARIOS)
    (module_processes.folder / "driver.py").write_text(DRIVER)
    return module_processes.folder


@pytest.fixture(scope="module")
def told(module_processes: Processes, folder: Path) -> list[dict[str, Any]]:
    """What each of four ranks on two hosts was told of a series of runs."""
    ended = module_processes.job(4, ["driver.py"], hosts=2)
    assert [one.code for one in ended] == [0, 0, 0, 0], "\n".join(one.err for one in ended)
    return [json.loads(one.out.splitlines()[-1]) for one in ended]


def test_rank_0_gets_what_every_rank_returned(told: list[dict[str, Any]]) -> None:
    run = told[0]["sums"]["json"]
    assert (run["ok"], run["backend"], run["world_size"]) == (True, "gloo", 4)
    # dp groups are (0, 2) and (1, 3).
    assert [value[0]["statistics"]["max"] for value in run["returns"]] == [2.0, 4.0, 2.0, 4.0]
    assert [value[1] for value in run["returns"]] == [[0, 4, 0, 2], [1, 4, 1, 2], [2, 4, 0, 2], [3, 4, 1, 2]]
    assert [value[2]["fields"]["rank"] for value in run["returns"]] == [0, 1, 2, 3]
    assert told[1]["sums"]["json"] is None


def test_trace_and_verdict_are_those_of_the_fake_world(told: list[dict[str, Any]], folder: Path) -> None:
    here = meshsim.run(f"{folder / 'job_scenarios.py'}::sums", "dp=2,tp=2")
    assert here.ok

    def calls(trace: Any) -> list[list[Any]]:
        return [
            [(c["op"], c["axis"], list(c["group"]), c["dtype"]) for c in of if not c["internal"]]
            for of in trace
        ]

    assert calls(told[0]["sums"]["json"]["trace"]) == calls(here.trace.to_json())
    for name in ("count_mismatch", "raises", "skips"):
        fake = meshsim.run(f"{folder / 'job_scenarios.py'}::{name}", "dp=4").verdict
        seen = told[0][name]
        assert (seen["kind"], tuple(seen["ranks"]), tuple(seen["waiting"])) == (
            fake.kind.value,
            fake.ranks,
            fake.waiting,
        )


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_recording_of_a_job_replays_elsewhere(told: list[dict[str, Any]], folder: Path, backend: str) -> None:
    from meshsim.scenarios import load

    assert told[0]["portable"]["kind"] == "passed"
    portable = load(f"{folder / 'job_scenarios.py'}::portable")
    replayed = meshsim.replay(folder / "recorded.json", backend=backend, scenario=portable)
    assert replayed.ok, replayed
    assert json.loads((folder / "recorded.json").read_text())["returns"][3]["statistics"]["max"] == (
        pytest.approx(4.2)
    )


def test_recording_of_the_fake_world_replays_in_a_job(processes: Processes) -> None:
    file = processes.folder / "job_scenarios.py"
    file.write_text(SCENARIOS)
    meshsim.run(f"{file}::portable", "dp=2", record=processes.folder / "recorded.json")
    ended = processes.job(2, ["-m", "meshsim", "replay", "recorded.json", "--backend", "gloo"], hosts=2)
    assert [one.code for one in ended] == [0, 0], ended[0].err
    assert "dp=2: recorded in fake, replayed in gloo: the same verdict (passed)" in ended[0].out
    assert not ended[1].out


def test_every_rank_gets_rank_0s_verdict(told: list[dict[str, Any]]) -> None:
    for name in ("sums", "count_mismatch", "raises", "skips", "leaves"):
        verdicts = [(one[name]["kind"], one[name]["summary"], one[name]["ranks"]) for one in told]
        assert verdicts == [verdicts[0]] * 4


def test_verdicts_name_host_and_device(told: list[dict[str, Any]]) -> None:
    kinds = {"count_mismatch": (2, "b"), "raises": (3, "b"), "skips": (1, "a"), "leaves": (1, "a")}
    for name, (rank, host) in kinds.items():
        assert f"rank {rank}: host host-{host}, cpu" in told[0][name]["summary"]
        assert told[0][name]["json"]["verdict"]["details"]["places"][str(rank)] == f"host host-{host}, cpu"
    assert "exited with code 7" in told[0]["leaves"]["summary"]


def test_job_goes_on_after_failed_runs(told: list[dict[str, Any]]) -> None:
    # Before it, all ranks waited for each other: nobody's end could free them.
    assert told[0]["all_wait"]["kind"] == "send recv cycle"
    assert told[0]["sums again"]["kind"] == "passed"


def test_unset_dp_follows_from_the_job_and_fewer_ranks_may_run(told: list[dict[str, Any]]) -> None:
    assert told[0]["own dp"]["topology"] == "dp=2,tp=2"
    fewer = told[0]["fewer ranks"]["json"]
    assert [value[1] for value in fewer["returns"]] == [[0, 3, 0, 2], [1, 3, 1, 2], [2, 3, 0, 1]]
    assert told[3]["fewer ranks"]["kind"] == "passed"


def test_what_does_not_fit_the_job_is_told_on_every_rank(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert one["too many"] == ["CannotRun", "the topology needs 8 ranks, and the job has 4"]
        assert one["misfit"][0] == "TopologyError"


def ran(processes: Processes, name: str, ranks: int = 4, **options: Any) -> list[Ended]:
    (processes.folder / "job_scenarios.py").write_text(SCENARIOS)
    arguments = ["-m", "meshsim", "run", f"job_scenarios.py::{name}", "--backend", "gloo", "--timeout", "3"]
    arguments += options.pop("arguments", [])
    return processes.job(ranks, arguments, hosts=2, **options)


def test_killed_rank_is_reported_with_its_host_and_last_call(processes: Processes) -> None:
    ended = ran(processes, "killed", arguments=["--json", "out.json"])
    assert [one.code for one in ended] == [1, 1, 1, -9]
    assert [bool(one.out) for one in ended] == [True, False, False, False]
    run = json.loads((processes.folder / "out.json").read_text())["runs"][0]
    assert (run["verdict"]["kind"], run["verdict"]["ranks"]) == ("exited", [3])
    assert "rank 3: host host-b, cpu; its process is gone" in run["verdict"]["summary"]
    assert "rank 3 had as its last call barrier number 1" in run["verdict"]["summary"]
    assert [call["op"] for call in run["trace"][3] if not call["internal"]] == ["barrier"]


def test_when_rank_0_is_killed_the_next_rank_reports(processes: Processes) -> None:
    ended = ran(processes, "killed", arguments=["--param", "rank=0"])
    assert [one.code for one in ended] == [-9, 1, 1, 1]
    assert [bool(one.out) for one in ended] == [False, True, False, False]
    assert "rank 0 (host host-a, cpu) is gone" in ended[1].out


def test_hanging_rank_is_reported_and_every_rank_leaves(processes: Processes) -> None:
    ended = ran(processes, "hangs")
    assert [one.code for one in ended] == [1, 1, 1, 1]
    assert "stuck: " in ended[0].out
    assert "rank 2: host host-b, cpu" in ended[0].out
    assert "at fault: rank 2" in ended[0].out


def test_rank_that_cannot_take_part_is_told_by_rank_0(processes: Processes) -> None:
    """One host lacks the scenario's file."""
    (processes.folder / "elsewhere").mkdir()
    (processes.folder / "job_scenarios.py").write_text(SCENARIOS)
    source = (
        "import os, sys\n"
        "os.environ['RANK'] == '2' and os.chdir('elsewhere')\n"
        "from meshsim.cli import main\n"
        "sys.exit(main(['run', 'job_scenarios.py::sums', '--backend', 'gloo']))\n"
    )
    ended = processes.job(3, ["-c", source])
    assert [one.code for one in ended] == [3, 3, 2]
    assert "rank 2 can't take part: scenario job_scenarios.py::sums: the file" in ended[0].err
    assert not ended[1].err


@pytest.mark.long
def test_differing_sources_are_refused_before_the_run(processes: Processes) -> None:
    for folder, text in (("one", SCENARIOS), ("two", SCENARIOS.replace("full((3,)", "full((4,)"))):
        (processes.folder / folder).mkdir()
        (processes.folder / folder / "job_scenarios.py").write_text(text)
    source = (
        "import os, sys\n"
        "os.chdir('two' if os.environ['RANK'] == '1' else 'one')\n"
        "from meshsim.cli import main\n"
        "sys.exit(main(['run', 'job_scenarios.py::sums', '--backend', 'gloo']))\n"
    )
    ended = processes.job(2, ["-c", source], hosts=2)
    assert [one.code for one in ended] == [3, 3]
    assert "ranks have different sources of the scenario" in ended[0].err
    assert "on rank 1 (host host-b)" in ended[0].err


@pytest.mark.long
def test_missing_backend_is_told_with_the_hosts_and_could_not_run(processes: Processes) -> None:
    (processes.folder / "job_scenarios.py").write_text(SCENARIOS)
    ended = processes.job(2, ["-m", "meshsim", "run", "job_scenarios.py::sums", "--backend", "hccl"], hosts=2)
    assert [one.code for one in ended] == [3, 3]
    assert "hosts host-a, host-b (ranks 0, 1): torch_npu is not installed" in ended[0].err


@pytest.mark.long
def test_ranks_that_never_come_are_named(processes: Processes) -> None:
    source = (
        "import os, sys\n"
        "os.environ['RANK'] == '1' and sys.exit(0)\n"
        "os.environ['MESHSIM_JOIN_TIMEOUT'] = '1.5'\n"
        "from meshsim.cli import main\n"
        "sys.exit(main(['run', 'mesh_facts', '--backend', 'gloo']))\n"
    )
    ended = processes.job(2, ["-c", source])
    assert ended[0].code == 3
    assert "rank 1 did not come within 1.5 s (MESHSIM_JOIN_TIMEOUT); 1 of 2 ranks are here" in ended[0].err


def test_two_torchrun_agents_are_two_hosts(processes: Processes) -> None:
    (processes.folder / "job_scenarios.py").write_text(SCENARIOS)
    run = ["-m", "meshsim", "run", "job_scenarios.py::raises", "--backend", "gloo", "--json", "out.json"]
    ended = processes.agents(2, 2, run)
    assert [one.code for one in ended] == [1, 1]
    verdict = json.loads((processes.folder / "out.json").read_text())["runs"][0]["verdict"]
    assert (verdict["kind"], verdict["ranks"]) == ("raised", [3])
    assert "rank 3: host host-b, cpu" in verdict["summary"]
    assert "rank 3 raised ValueError" in ended[0].out
    # Of all ranks, only the one that failed on its own is blamed by torchrun's own summary.
    assert "SIGTERM" not in ended[0].err.split("Failures")[-1].split("Root Cause")[-1]
