"""``meshsim run`` in the fake world."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

Call = Callable[..., Any]


def test_one_topology_passes(call: Call, scenarios: str) -> None:
    code, out, err = call("run", f"{scenarios}::adds_up", "--topology", "dp=2,tp=2")
    assert code == 0
    assert err == ""
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["ranks", "topology", "backend", "verdict", "seconds"]
    assert lines[1][:4] == ["4", "dp=2,tp=2", "fake", "passed"]
    assert lines[2] == ["1", "run:", "1", "passed"]


def test_output_to_a_pipe_is_plain(call: Call, scenarios: str) -> None:
    _, out, err = call("run", f"{scenarios}::adds_up", "--world-sizes", "1-2")
    assert "\x1b" not in out + err
    assert not any(character in out for character in "│┃━─")


def test_world_sizes_run_every_topology(call: Call, scenarios: str) -> None:
    code, out, _ = call("run", f"{scenarios}::adds_up", "--world-sizes", "1-3", "--axes", "dp,tp")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:-1]] == ["dp=1", "dp=2", "tp=2", "dp=3", "tp=3"]


def test_several_topologies(call: Call, scenarios: str) -> None:
    code, out, _ = call("run", f"{scenarios}::adds_up", "-t", "tp=2", "-t", "pp=3")
    assert code == 0
    assert "2 runs: 2 passed" in out


def test_without_a_topology_one_rank_runs(call: Call, scenarios: str) -> None:
    code, out, _ = call("run", f"{scenarios}::adds_up")
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["1", "dp=1"]


def test_a_failure_names_the_topology_and_shows_the_odd_rank(call: Call, scenarios: str) -> None:
    code, out, err = call(
        "run", f"{scenarios}::breaks_with_tp", "--world-sizes", "2", "--axes", "dp,tp", "--seed", "5"
    )
    assert code == 1
    assert err == ""
    assert "FAILED tp=2, 2 ranks on fake, seed 5" in out
    assert "FAILED dp=2" not in out
    assert "ValueError: tp is not my thing" in out
    assert "my_scenarios.py" in out
    assert "[rank1] about to break" in out
    assert "2 runs: 1 passed, 1 failed" in out


def test_a_deadlock_is_named_with_its_rank(call: Call, scenarios: str) -> None:
    code, out, _ = call("run", f"{scenarios}::rank_one_skips", "-t", "dp=3")
    assert code == 1
    assert "deadlock: rank 1" in out


def test_what_is_not_supported_is_shown_and_nothing_passed_is_no_pass(call: Call, scenarios: str) -> None:
    code, out, _ = call("run", f"{scenarios}::no_pp", "-t", "tp=2", "-t", "pp=2")
    assert code == 0
    assert "not run: pp isn't covered yet" in out
    assert "2 runs: 1 passed, 1 not run" in out
    assert call("run", f"{scenarios}::no_pp", "-t", "pp=2").code == 3


def test_parameters_reach_the_scenario(call: Call, scenarios: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.json"
    options = ("--param", "lr=0.5", "--param", "name=adam", "--param", "betas=[1, 2]", "--json", str(file))
    assert call("run", f"{scenarios}::wants", "-t", "dp=1", *options).code == 0
    (run,) = json.loads(file.read_text())["runs"]
    assert run["params"] == {"lr": 0.5, "name": "adam", "betas": [1, 2]}
    assert run["returns"][0] == run["params"]


def test_files_hold_every_run(call: Call, scenarios: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("runs.json", "trace.json", "junit.xml")]
    options = [
        text for pair in zip(("--json", "--trace", "--junit"), map(str, files), strict=True) for text in pair
    ]
    code, _, _ = call("run", f"{scenarios}::breaks_with_tp", "-t", "dp=2", "-t", "tp=2", *options)
    assert code == 1
    runs = json.loads(files[0].read_text())
    assert runs["ok"] is False
    assert [run["verdict"]["kind"] for run in runs["runs"]] == ["passed", "raised"]
    events = json.loads(files[1].read_text())["traceEvents"]
    assert {"barrier"} <= {event["name"] for event in events if event["ph"] == "X"}
    assert ElementTree.parse(files[2]).getroot()[0].get("failures") == "1"


def test_flight_recorder_dumps_of_several_runs_have_a_folder_each(
    call: Call, scenarios: str, tmp_path: Path
) -> None:
    options = ("-t", "dp=2", "-t", "tp=3", "--flight-recorder", str(tmp_path / "dumps"))
    call("run", f"{scenarios}::adds_up", *options)
    assert sorted(str(path.relative_to(tmp_path / "dumps")) for path in tmp_path.glob("dumps/*/*")) == [
        *(f"000-dp=2-fake/rank_{rank}" for rank in range(2)),
        *(f"001-tp=3-fake/rank_{rank}" for rank in range(3)),
    ]


def test_flight_recorder_dumps_go_into_an_empty_folder(call: Call, scenarios: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    folder = str(tmp_path / "full")
    code, _, err = call("run", f"{scenarios}::adds_up", "-t", "dp=2", "--flight-recorder", folder)
    assert code == 2
    assert "notes.txt lies there" in err
    code, _, _ = call(
        "run", f"{scenarios}::adds_up", "-t", "dp=2", "--flight-recorder", str(tmp_path / "new")
    )
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["rank_0", "rank_1"]


def test_several_backends_share_one_table_and_each_can_have_its_own_cover(call: Call, scenarios: str) -> None:
    options = ("--world-sizes", "2", "--axes", "dp,tp", "--backend", "fake", "--backend", "gloo")
    code, out, _ = call("run", f"{scenarios}::adds_up", *options, "--cover", "all", "--cover", "gloo=each")
    assert code == 0
    assert [line.split()[1:4:2] for line in out.splitlines()[1:-1]] == [
        ["dp=2", "passed"],
        ["tp=2", "passed"],
        ["dp=2", "passed"],
    ]
    assert [line.split()[2] for line in out.splitlines()[1:-1]] == ["fake", "fake", "gloo"]


def test_a_backend_that_is_named_twice_runs_once(call: Call, scenarios: str) -> None:
    _, out, _ = call("run", f"{scenarios}::adds_up", "-t", "dp=2", "--backend", "fake", "--backend", "auto")
    assert out.splitlines()[-1] == "1 run: 1 passed"


def test_a_fault_is_injected(call: Call, scenarios: str) -> None:
    code, out, _ = call("run", f"{scenarios}::adds_up", "-t", "dp=2", "--fault", "rank=1:raise@all_reduce#1")
    assert code == 1
    assert "rank=1:raise@all_reduce#1" in out


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (("-t", "tp=3", "--world-sizes", "4"), 2, "4 % 3"),
        (("-t", "tp"), 2, "'tp'"),
        (("-t", "xp=2"), 2, "xp"),
        (("--world-sizes", "0-3"), 2, "world sizes '0-3'"),
        (("--world-sizes", "4", "--cover", "most"), 2, "cover must be"),
        (("--world-sizes", "4", "--cover", "gloo=2"), 2, "no --backend gloo is run"),
        (("-t", "dp=2", "--cover", "2"), 2, "cover"),
        (("-t", "dp=2", "--backend", "mpi"), 2, "backend 'mpi' is unknown; known are fake, gloo"),
        (("-t", "dp=2", "--backend", "nccl"), 3, "nccl: this process was not started by torchrun"),
        (("-t", "dp=2", "--param", "lr"), 2, "--param 'lr' has no value"),
        (("-t", "dp=2", "--timeout", "0"), 2, "timeout"),
        (("-t", "dp=2", "--timeout", "soon"), 2, "--timeout"),
        (("-t", "dp=2", "--seed", "-1"), 2, "seed"),
        (("-t", "dp=2", "--profile", "mpi"), 2, "profile 'mpi'"),
        (("-t", "dp=2", "--fault", "rank=7:crash@*"), 2, "rank=7 is out of range"),
        (("-t", "dp=2", "--fault", "crash"), 2, "the form is rank=3:crash"),
        (("-t", "dp=2", "--json", "/no/such/folder/x.json"), 2, "there is no folder"),
        (("-t", "dp=2", "--order", "dp,tp,xx"), 2, "xx"),
        (("-t", "dp=2", "--colour"), 2, "--colour"),
    ],
)
def test_wrong_input_is_one_line_and_no_traceback(
    call: Call, scenarios: str, arguments: tuple[str, ...], code: int, names: str
) -> None:
    answer = call("run", f"{scenarios}::adds_up", *arguments)
    assert answer.code == code
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1
    assert answer.err.startswith("meshsim: ")
    assert names in answer.err


@pytest.mark.parametrize(
    "target", ["no_such_scenario", "no_such_file.py::x", "{file}::nothing", "no_such_module:x", "{file}"]
)
def test_an_unknown_target_is_one_line(call: Call, scenarios: str, target: str) -> None:
    answer = call("run", target.format(file=scenarios), "-t", "dp=2")
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert "Traceback" not in answer.err


def test_ctrl_c_exits_with_130_and_shows_what_was_done(
    call: Call, scenarios: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import meshsim.sweeps

    run = meshsim.sweeps.run
    done = []

    def interrupted(*args: Any, **options: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(run(*args, **options))
        return done[0]

    monkeypatch.setattr(meshsim.sweeps, "run", interrupted)
    code, out, err = call("run", f"{scenarios}::adds_up", "-t", "dp=2", "-t", "tp=2")
    assert code == 130
    assert err == "meshsim: interrupted\n"
    assert "dp=2" in out
    assert "1 run: 1 passed" in out
