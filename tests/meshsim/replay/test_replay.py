"""A recorded run is run again in any world, and what differs first is named with its rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import meshsim
from meshsim.cli import main
from meshsim.errors import UsageError
from meshsim.recordings import read_recording


@pytest.mark.parametrize(("made", "again"), [("fake", "gloo"), ("gloo", "fake"), ("fake", "fake")])
def test_recording_of_one_world_replays_in_the_other(
    recorded: Callable[..., Path], made: str, again: str
) -> None:
    file = recorded(backend=made, params={"scale": 3}, seed=7)
    replayed = meshsim.replay(file, backend=again)
    assert replayed.ok, replayed
    assert replayed.differences == []
    assert (replayed.recording.backend, replayed.result.backend, replayed.result.seed) == (made, again, 7)
    # dp groups are (0, 2) and (1, 3): 0.25 + 2.25 on rank 0, which broadcasts it.
    assert [value["first"] for value in replayed.result.returns] == [2.5] * 4
    assert replayed.result.returns[3]["x"].tolist() == [7.5] * 4


@pytest.mark.parametrize("again", ["fake", "gloo"])
def test_recorded_failure_that_comes_again_is_the_same(recorded: Callable[..., Path], again: str) -> None:
    file = recorded("fails_on_one", "dp=3")
    replayed = meshsim.replay(file, backend=again)
    assert replayed.ok, replayed
    assert replayed.result.verdict.kind == "raised"
    assert replayed.result.verdict.ranks == (1,)


def test_what_differs_first_is_the_earliest_call(
    recorded: Callable[..., Path], edited: Callable[..., Path]
) -> None:
    def change(data: Any) -> None:
        data["trace"][1][1]["root"] = 3
        data["trace"][2][0]["reduce_op"] = "MAX"
        data["returns"][0]["first"] = 9.0

    replayed = meshsim.replay(edited(recorded(), change))
    assert not replayed.ok
    first = replayed.first
    assert first is not None
    assert (first.what, first.rank, first.call) == ("trace", 2, 0)
    assert "reduce_op was 'MAX', now 'SUM'" in first.text
    assert [(other.what, other.rank) for other in replayed.differences[1:]] == [("trace", 1), ("returns", 0)]


def test_call_that_is_gone_or_new_is_named(
    recorded: Callable[..., Path], edited: Callable[..., Path]
) -> None:
    file = edited(recorded(), lambda data: data["trace"][3].pop())
    first = meshsim.replay(file).first
    assert first is not None
    assert str(first).startswith("trace, rank 3, call 2: nothing was recorded, broadcast on world")


def test_plan_and_verdict_come_before_the_trace(
    recorded: Callable[..., Path], edited: Callable[..., Path]
) -> None:
    def change(data: Any) -> None:
        data["plan"]["digest"] = "0" * 64
        data["verdict"].update(kind="deadlock", summary="ranks waited", ranks=[2])
        data["trace"][0][0]["op"] = "all_gather"

    replayed = meshsim.replay(edited(recorded(), change))
    assert [difference.what for difference in replayed.differences] == ["plan", "verdict", "trace"]
    assert "deadlock (ranks waited) was recorded, passed" in replayed.differences[1].text


def _recorded_tensor(file: Path) -> dict[str, Any]:
    tensor: dict[str, Any] = json.loads(file.read_text())["returns"][0]
    return tensor


@pytest.mark.parametrize(
    ("dtype", "factor", "same"),
    [
        (torch.float32, 1 + 1e-7, True),
        (torch.float32, 1 + 1e-4, False),
        (torch.bfloat16, 1 + 2**-7, True),
        (torch.bfloat16, 1.25, False),
        (torch.float64, 1 + 1e-9, True),
        (torch.float64, 1 + 1e-5, False),
    ],
)
def test_tensors_are_the_same_within_the_tolerance_of_their_dtype(
    tmp_path: Path, dtype: torch.dtype, factor: float, same: bool
) -> None:
    file = tmp_path / "run.json"
    scale = [1.0]

    def one_tensor(ctx: Any) -> torch.Tensor:
        return (torch.arange(1, 9, dtype=torch.float64) * scale[0]).to(dtype)

    meshsim.run(one_tensor, "dp=1", record=file)
    scale[0] = factor
    replayed = meshsim.replay(file, scenario=one_tensor)
    assert replayed.result.returns[0].dtype is dtype
    assert replayed.ok is same, replayed


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_elements_that_changed_places_are_a_difference(tmp_path: Path, dtype: torch.dtype) -> None:
    file = tmp_path / "run.json"
    order = [[0, 1, 2, 3]]

    def one_tensor(ctx: Any) -> torch.Tensor:
        return torch.tensor([0, 1, 0, 5])[order[0]].to(dtype)

    meshsim.run(one_tensor, "dp=1", record=file)
    order[0] = [1, 0, 2, 3]
    first = meshsim.replay(file, scenario=one_tensor).first
    assert first is not None
    assert (first.what, first.rank) == ("returns", 0)


def test_path_beside_the_recording_is_found(
    scenario_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    meshsim.run(f"{scenario_file.name}::sums", "dp=2", record="run.json")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert meshsim.replay("../run.json").ok


def test_function_of_a_module_is_recorded_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    meshsim.run("train_step", "dp=1", record=file)
    assert read_recording(file).target == "train_step"
    from meshsim.scenarios.train_step import train_step

    meshsim.run(train_step, "dp=1", record=file)
    target = read_recording(file).target
    assert target is not None
    assert meshsim.replay(file).ok


def test_comment_is_no_change_of_the_source_but_code_is(
    recorded: Callable[..., Path], scenario_file: Path
) -> None:
    file = recorded()
    scenario_file.write_text("# a comment\n\n" + scenario_file.read_text())
    assert meshsim.replay(file).ok
    scenario_file.write_text(scenario_file.read_text().replace("src=0", "src=1"))
    with pytest.raises(UsageError, match=r"source of scenario .*sums' has changed since .*allow-changed"):
        meshsim.replay(file)
    first = meshsim.replay(file, allow_changed=True).first
    assert first is not None
    assert (first.what, first.rank, first.call) == ("trace", 0, 1)


def _set(**values: Any) -> Callable[[Any], None]:
    return lambda data: data.update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(schema_version=99), "schema 99; this meshsim reads 1"),
        (_set(format="something"), "is no recording"),
        (lambda data: data.pop("trace"), "damaged: trace missing"),
        (lambda data: data["trace"][1][0].update(op=3), r"damaged: trace\[1\]\[0\].op is not a JSON string"),
        (lambda data: data["trace"].pop(), "damaged: its plan has 4 ranks"),
        (_set(seed=-1), "damaged: seed is -1"),
        (lambda data: data["scenario"].update(target=None), "function that no file or module names"),
        (
            lambda data: data["scenario"].update(target="no_such_module_here:f"),
            "no module 'no_such_module_here'",
        ),
        (
            lambda data: data["scenario"].update(target="/nowhere/x.py::f"),
            "the file /nowhere/x.py isn't there",
        ),
    ],
)
def test_bad_file_is_one_clear_line_and_wrong_use(
    recorded: Callable[..., Path],
    edited: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Any], Any],
    message: str,
) -> None:
    file = edited(recorded(), change)
    with pytest.raises(UsageError, match=message):
        meshsim.replay(file)
    assert main(["replay", str(file)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content"), [("none.json", None), ("text.json", "hello"), ("list.json", "[]")]
)
def test_file_that_is_no_recording(tmp_path: Path, name: str, content: str | None) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=str(file)):
        meshsim.replay(file)


def test_parameter_that_json_cannot_hold_is_refused_before_the_run(
    scenario_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"can't record params\['shape'\]"):
        meshsim.run(f"{scenario_file}::sums", "dp=1", params={"shape": (1, 2)}, record=tmp_path / "x.json")


def test_command_line_records_and_replays(
    scenario_file: Path, tmp_path: Path, edited: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.json"
    target = f"{scenario_file}::sums"
    assert main(["run", target, "-t", "dp=2", "--record", str(file)]) == 0
    assert read_recording(file).target == target
    assert main(["replay", str(file), "--backend", "gloo", "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["ok"] is True
    edited(file, lambda data: data["returns"][1].update(first=3.0))
    capsys.readouterr()
    assert main(["replay", str(file)]) == 1
    assert "returns, rank 1: ['first']: 3.0 was recorded, 1.5 came now" in capsys.readouterr().out
    assert main(["run", target, "--world-sizes", "1-2", "--record", str(file)]) == 2
    assert main(["replay", str(file), "--backend", "nccl"]) == 3
