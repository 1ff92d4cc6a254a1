"""``meshsim smoke`` on this machine, and as a job of two hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch.distributed as dist

from meshsim.cli import main
from meshsim.errors import UsageError
from meshsim.smoke import StageState, run_smoke
from meshsim.smoke.contact import contact
from meshsim.smoke.measures import measure_bandwidth, measure_links, measure_stragglers
from meshsim.smoke.session import Session
from meshsim.topologies import build_plan
from meshsim.worlds.registry import world_for

sys.path.append(str(Path(__file__).parents[1] / "cluster"))
from cluster_jobs import Processes


@pytest.fixture
def session() -> Callable[..., Session]:
    """``session("dp=4")``: in the fake world."""

    def make(topology: str, **options: Any) -> Session:
        plan = build_plan(topology)
        return Session(world_for("fake"), plan, topology, budget=options.pop("budget", None), **options)

    return make


PLACES = {rank: f"host {'abcd'[rank // 2]}" for rank in range(8)}


def test_bandwidth_of_every_axis_with_right_results(session: Callable[..., Session]) -> None:
    stage = measure_bandwidth(session("dp=2,tp=2,pp=2"), PLACES, 1 << 14, times=1)
    # Ranks that take turns in one process are no measure of speed; right they must be.
    assert stage.state is not StageState.FAILED, stage.summary
    rows = stage.data["bandwidth"]
    assert {row["axis"].partition("=")[0] for row in rows} >= {"dp", "tp", "pp", "world"}
    assert {row["wrong"] for row in rows} == {0}
    assert {row["bytes"] for row in rows} == {1 << 10, 1 << 14}
    assert {(row["op"], row["in_place"]) for row in rows} == {
        ("all_reduce", True),
        ("all_gather", False),
        ("all_gather", True),
        ("reduce_scatter", False),
        ("reduce_scatter", True),
        ("all_to_all", False),
        ("broadcast", True),
    }
    for row in rows:
        assert row["algbw"] == pytest.approx(row["bytes"] / row["seconds"])
    assert "bfloat16" in {row["dtype"] for row in rows}


@pytest.mark.parametrize("call", ["all_reduce", "all_gather_single", "reduce_scatter_single", "broadcast"])
def test_wrong_data_are_told_with_the_axis_and_the_hosts(
    session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A backend that damages one element on rank 2 along every axis."""
    right = getattr(dist, call)

    def damaging(output: Any, *args: Any, **kwargs: Any) -> Any:
        done = right(output, *args, **kwargs)
        if dist.get_rank() == 2:
            output[-1] += 1
        return done

    monkeypatch.setattr(dist, call, damaging)
    stage = measure_bandwidth(session("dp=2,tp=2"), PLACES, 1 << 10, times=1)
    assert stage.state is StageState.FAILED
    assert "1 wrong elements" in stage.summary
    assert "host b" in stage.summary


def test_links_and_stragglers_pass_in_one_process(session: Callable[..., Session]) -> None:
    stage = measure_links(session("dp=4"), PLACES, [0, 1, 2, 3], 1 << 10, times=1)
    assert stage.state is not StageState.FAILED, stage.summary
    assert sorted(tuple(link["pair"]) for link in stage.data["links"]) == [
        (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)
    ]  # fmt: skip
    assert len(measure_stragglers(session("dp=4"), PLACES, side=8, times=1).data["compute_seconds"]) == 4
    assert measure_links(session("dp=1"), PLACES, [0], 1 << 10).state is StageState.NOT_RUN


def test_contact_finds_the_rank_that_breaks_every_group(
    session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 5's link is broken: it never takes part in an all-reduce."""
    right = dist.all_reduce

    def broken(*args: Any, **kwargs: Any) -> Any:
        return None if dist.get_rank() == 5 else right(*args, **kwargs)

    monkeypatch.setattr(dist, "all_reduce", broken)
    stage = contact(session("dp=8"), range(8))
    assert stage.state is StageState.FAILED
    assert stage.data["broken"] == [5]
    assert stage.summary.endswith("it works without rank 5")


def test_contact_sees_wrong_sums(session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> None:
    right = dist.all_reduce

    def damaging(data: Any, *args: Any, **kwargs: Any) -> None:
        right(data, *args, **kwargs)
        if dist.get_rank() == 2:
            data[7] += 1

    monkeypatch.setattr(dist, "all_reduce", damaging)
    stage = contact(session("dp=4"), range(4))
    assert stage.state is StageState.FAILED
    assert stage.summary == "wrong sums on rank 2; it works without rank 2"


def test_command_writes_text_json_and_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("out.json", "out.xml")]
    code = main(
        ["smoke", "-t", "dp=2", "-b", "fake", "--max-bytes", "1024", "--json", files[0], "--junit", files[1]]
    )
    text = capsys.readouterr().out
    assert code == 0, text
    assert text.startswith(
        "smoke run PASSED: everything that was run is right\ndp=2, 2 ranks on fake, 1 host"
    )
    assert len(text.splitlines()) <= 40
    data = json.loads(Path(files[0]).read_text())
    assert (data["ok"], data["schema_version"], data["topology"]) == (True, 1, "dp=2")
    names = [stage["name"] for stage in data["stages"]]
    assert names == ["preflight", "contact", "scenarios", "bandwidth", "stragglers", "links"]
    scenarios = {check["name"]: check["state"] for check in data["stages"][2]["checks"]}
    assert set(scenarios.values()) <= {"passed", "not run"}
    assert scenarios["collectives"] == "passed"
    assert ElementTree.parse(files[1]).getroot()[2].get("name") == "meshsim smoke scenarios"


def test_what_does_not_fit_the_budget_is_not_run() -> None:
    report = run_smoke("dp=2", backend="fake", budget=0.01)
    states = [stage.state for stage in report.stages]
    assert states == [StageState.PASSED] + [StageState.NOT_RUN] * 5
    assert report.stages[2].summary == "the budget of 0.01 s is spent"


def test_failing_scenario_fails_the_smoke_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(ctx: Any) -> None:
        raise ValueError("broken")

    import meshsim.smoke.library as library

    monkeypatch.setattr(library, "BUILT_IN", {"breaks": ("", "")})
    monkeypatch.setattr(library, "load", lambda name: breaks)
    report = run_smoke("dp=2", backend="fake", max_bytes=1024)
    assert not report.ok
    assert report.verdict.startswith("scenarios: 1 failed; breaks: ranks 0, 1 raised ValueError")


@pytest.mark.parametrize("options", [{"budget": 0}, {"budget": -1.0}, {"max_bytes": 0}])
def test_wrong_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        run_smoke("dp=2", backend="fake", **options)


def test_an_impossible_topology_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "-t", "dp=0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.long
def test_smoke_on_this_machine_runs_on_gloo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--budget", "60", "--max-bytes", "16384"]) == 0
    assert "dp=2,tp=2, 4 ranks on gloo, 1 host" in capsys.readouterr().out


def test_smoke_as_a_job_of_two_hosts(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    try:
        arguments = ["-m", "meshsim", "smoke", "-t", "tp=2", "--max-bytes", "16384", "--budget", "40"]
        ended = processes.job(4, [*arguments, "--json", "out.json"], hosts=2)
    finally:
        processes.end()
    data = json.loads((tmp_path / "out.json").read_text())
    assert (data["topology"], data["world_size"], data["hosts"]) == ("tp=2", 4, ["host-a", "host-b"])
    assert [rank["host"] for rank in data["stages"][0]["ranks"]] == ["host-a"] * 2 + ["host-b"] * 2
    states = {stage["name"]: stage["state"] for stage in data["stages"]}
    # How fast this machine's ranks are to each other is not this test's business.
    assert {states[name] for name in ("preflight", "contact", "scenarios")} == {"passed"}
    assert [link["pair"] for link in data["stages"][5]["links"]] == [[0, 2]]
    assert [one.code for one in ended] == [0 if data["ok"] else 1] * 4
    assert ended[0].out.startswith("smoke run ")
    assert not ended[1].out
