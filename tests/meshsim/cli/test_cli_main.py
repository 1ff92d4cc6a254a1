"""The command line as a whole: help, unknown commands, doctor, and the process that it runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import meshlib
from meshsim.cli import app

Call = Callable[..., Any]
COMMANDS = ("run", "list", "show", "replay", "matrix", "doctor")


def test_help_lists_the_commands(call: Call) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert all(f"  {command} " in out for command in COMMANDS)
    for command in COMMANDS:
        assert call(command, "--help").code == 0


def test_no_command_is_wrong_use_and_shows_the_help(call: Call) -> None:
    code, out, _ = call()
    assert code == 2
    assert "Usage: meshsim" in out


@pytest.mark.parametrize("arguments", [("fly",), ("--fly",), ("list", "extra"), ("doctor", "--deep")])
def test_wrong_use_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert arguments[-1] in err
    assert "--help" in err


def test_several_problems_of_a_topology_are_still_one_line(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: Any, **__: Any) -> None:
        raise meshlib.TopologyError("2 problems:\n  - tp: first\n  - pp: second")

    monkeypatch.setattr("meshsim.topologies.build_plan", wrong)
    assert call("show", "tp=2").err == "meshsim: 2 problems: tp: first; pp: second\n"


def test_an_error_of_our_own_making_is_not_hidden(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("meshsim.topologies.build_plan", broken)
    with pytest.raises(ZeroDivisionError):
        call("show", "tp=2")


def test_the_doctor_says_what_runs_here_and_why_not_the_rest(call: Call) -> None:
    code, out, _ = call("doctor")
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["fake"][1] == "yes"
    assert rows["nccl"][1] == "no"
    assert "torchrun" in " ".join(rows["nccl"])


def test_list_has_the_built_in_scenarios(call: Call) -> None:
    code, out, _ = call("list")
    assert code == 0
    assert any(line.startswith("train_step ") for line in out.splitlines())


def test_the_installed_command_exits_with_the_code() -> None:
    command = os.path.join(os.path.dirname(sys.executable), "meshsim")
    done = subprocess.run(
        [command, "show", "tp=3", "--world-size", "4"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("meshsim: ")
    assert "Traceback" not in done.stderr


def test_exit_codes_are_those_of_the_documentation() -> None:
    from meshsim.cli.exit_codes import ExitCode

    assert [int(code) for code in ExitCode] == [0, 1, 2, 3, 130]
    assert app.app.info.name == "meshsim"
