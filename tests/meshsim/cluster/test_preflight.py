"""What ranks say of themselves, judged before the first collective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshsim.worlds.cluster.devices import DeviceChoice, choose_device
from meshsim.worlds.cluster.environment import local_ranks, rank_variables
from meshsim.worlds.cluster.facts import RankFacts, RunFacts
from meshsim.worlds.cluster.launch import Launch
from meshsim.worlds.cluster.preflight import job_problems, run_problems

VERSIONS = {"torch": "2.13.0", "NCCL": "2.27.3"}


def rank(number: int, host: str = "a", device: int | None = None, **facts: Any) -> RankFacts:
    index = number if device is None else device
    given = {
        "pid": 100 + number,
        "launcher": "torchrun",
        "backend": "nccl",
        "local_rank": index,
        "local_world_size": None,
        "versions": VERSIONS,
        "device": f"cuda:{index}",
        "physical": str(index),
        "count": 8,
    }
    return RankFacts(rank=number, host=host, **{**given, **facts})


def two_hosts() -> list[RankFacts]:
    return [rank(n, "a" if n < 2 else "b", n % 2) for n in range(4)]


def test_ranks_that_fit_have_no_problems() -> None:
    assert job_problems(two_hosts()) == []


@pytest.mark.parametrize("case", ["CLUS-01"])
def test_two_ranks_on_one_device(case: str) -> None:
    assert job_problems([rank(0, "a", 0), rank(1, "a", 0)]) == ["ranks 0, 1 are both on host a, device 0"]
    # Two containers of one machine: other host names, the same UUID.
    same = [replace(rank(0, "pod-0", 0), uuid="GPU-1"), replace(rank(1, "pod-1", 0), uuid="GPU-1")]
    assert job_problems(same) == ["ranks 0, 1 are both on host pod-0 and pod-1, device 0"]
    # The same index on another machine, or an own device behind the same index, is right.
    assert job_problems([rank(0, "a", 0), rank(1, "b", 0)]) == []
    own = [rank(n, "a", 0, physical=str(n), visible=str(n), count=1) for n in range(2)]
    assert job_problems(own) == []


@pytest.mark.parametrize("case", ["CLUS-02"])
def test_the_local_rank_counts_visible_devices(case: str) -> None:
    assert choose_device(1, 2, "3,6", "CUDA_VISIBLE_DEVICES") == DeviceChoice(1, "6")
    assert choose_device(0, 2, "3,6", "CUDA_VISIBLE_DEVICES") == DeviceChoice(0, "3")
    assert choose_device(3, 8, None, "CUDA_VISIBLE_DEVICES") == DeviceChoice(3, "3")
    # The launcher shows each process its own device only.
    assert choose_device(3, 1, "5", "CUDA_VISIBLE_DEVICES") == DeviceChoice(0, "5")
    assert choose_device(1, 2, "GPU-aa,GPU-bb", "CUDA_VISIBLE_DEVICES") == DeviceChoice(1, "GPU-bb")
    assert choose_device(2, 2, "3,6", "CUDA_VISIBLE_DEVICES") == (
        "LOCAL_RANK 2 needs 3 devices, and 2 are visible (CUDA_VISIBLE_DEVICES=3,6)"
    )
    assert choose_device(0, 0, "", "CUDA_VISIBLE_DEVICES") == "no device is visible (CUDA_VISIBLE_DEVICES=)"


def test_too_few_devices_are_told_with_the_host() -> None:
    ranks = [rank(n, "a", 0, count=1, visible="0", physical="0") for n in range(3)]
    assert job_problems(ranks) == [
        "host a has 1 cuda device for 3 ranks",
        "ranks 0, 1, 2 are all on host a, device 0",
    ]


def test_missing_libraries_are_told_once_with_all_hosts() -> None:
    ranks = [
        replace(fact, problem="torch_npu is not installed", device="") if fact.host == "b" else fact
        for fact in two_hosts()
    ]
    assert job_problems(ranks) == ["host b (ranks 2, 3): torch_npu is not installed"]


def test_differing_versions_backends_and_launchers_are_told_with_the_hosts() -> None:
    ranks = two_hosts()
    ranks[3] = replace(ranks[3], versions={"torch": "2.13.0", "NCCL": "2.26.2"})
    ranks[2] = replace(ranks[2], backend="gloo", launcher="environment")
    assert job_problems(ranks) == [
        "versions of NCCL differ: 2.27.3 on hosts a, b (ranks 0, 1, 2); 2.26.2 on host b (rank 3)",
        "ranks ask for different backends: nccl on ranks 0, 1, 3 (hosts a, b); gloo on rank 2 (host b)",
        "ranks see different launchers: torchrun on ranks 0, 1, 3 (hosts a, b); "
        "environment on rank 2 (host b)",
    ]


def test_launchers_count_of_a_host_against_the_hosts() -> None:
    ranks = [rank(n, "a", n, local_world_size=2) for n in range(3)]
    assert job_problems(ranks) == ["host a has 3 ranks (0, 1, 2), and the launcher says 2 a host"]


def run(**facts: Any) -> RunFacts:
    given = {
        "scenario": "f",
        "source": "sha256:aaaaaaaaaaaa",
        "plan": "p" * 64,
        "topology": "dp=4",
        "seed": 0,
        "params": "{}",
    }
    return RunFacts(**{**given, **facts})


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"scenario": "g"},
            "ranks run different scenarios: f on ranks 0, 1, 2 (hosts a, b); g on rank 3 (host b)",
        ),
        (
            {"source": "sha256:bbbbbbbbbbbb"},
            "ranks have different sources of the scenario: aaaaaaaaaaaa on ranks 0, 1, 2 (hosts a, b); "
            "bbbbbbbbbbbb on rank 3 (host b)",
        ),
        (
            {"plan": "q" * 64, "topology": "tp=2"},
            "ranks ask for different plans: dp=4 (pppppppppppp) on ranks 0, 1, 2 (hosts a, b); "
            "tp=2 (qqqqqqqqqqqq) on rank 3 (host b)",
        ),
        ({"seed": 1}, "ranks have different seeds: 0 on ranks 0, 1, 2 (hosts a, b); 1 on rank 3 (host b)"),
        ({"refused": "no such file"}, "rank 3 can't take part: no such file"),
    ],
)
def test_what_ranks_are_about_to_do_differently_is_told(changed: dict[str, Any], told: str) -> None:
    assert run_problems([run(), run(), run(), run()], two_hosts()) == []
    assert run_problems([run(), run(), run(), run(**changed)], two_hosts()) == [told]


def test_local_ranks_follow_from_the_hosts_where_no_launcher_says() -> None:
    ranks = [replace(rank(n, host), local_rank=None) for n, host in enumerate(("a", "b", "a", "b", "b"))]
    assert local_ranks(ranks) == (0, 0, 1, 1, 2)


def test_variables_of_a_run_on_the_first_ranks_of_a_job() -> None:
    launch = Launch("torchrun", 2, 4, 0, 2, "a", 1)
    assert rank_variables(launch, two_hosts(), 3) == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }
