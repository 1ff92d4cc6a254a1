"""Ctrl-C in a real process: exit code 130, one line, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCENARIO = """
import time
from pathlib import Path


def sleeps(ctx):
    with Path(ctx.params["pipe"]).open("w") as pipe:
        pipe.write("x")
    time.sleep(300)
"""


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_ctrl_c_ends_the_run_and_all_its_processes(tmp_path: Path, backend: str) -> None:
    (tmp_path / "sleeper.py").write_text(SCENARIO)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [
        sys.executable,
        "-m",
        "meshsim",
        "run",
        "sleeper.py::sleeps",
        "-t",
        "dp=2",
        "--backend",
        backend,
    ]
    process = subprocess.Popen(
        [*command, "--param", f"pipe={pipe}"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with pipe.open() as reading:
        assert reading.read(1) == "x"  # waits until a rank is in the scenario
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == "meshsim: interrupted\n"
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
