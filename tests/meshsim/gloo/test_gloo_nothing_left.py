"""However a run or its parent ends, no process, socket or file of ours stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

# Ranks hang, and one of them has a child of its own. A line says when all is up.
HANGING = """
import subprocess, sys, time
import meshsim

def scenario(ctx):
    if ctx.rank == 0:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(f"up-{ctx.rank}", "w").close()
    time.sleep(600)

meshsim.run(scenario, "dp=3", backend="gloo", timeout=600)
"""

IDLE = """
import sys, time
import meshsim
print(meshsim.run(lambda ctx: ctx.rank, "dp=3", backend="gloo").returns, flush=True)
"""


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    import time

    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)


def hanging(program: Any, folder: Path, descendants: Any, **options: Any) -> tuple[Any, list[psutil.Process]]:
    process = program(HANGING, **options)
    wait_until(lambda: all((folder / f"up-{rank}").exists() for rank in range(3)), process)
    below = descendants(process.pid)
    # The fork server, three workers, and the child of one of them.
    assert len(below) >= 5
    return process, below


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []


@pytest.fixture
def unrelated() -> Any:
    """A process that no run started: it must live through all."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="SIGKILL"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.long),
    ],
)
def test_killed_parent_leaves_no_process(
    program: Any, tmp_path: Path, descendants: Any, unrelated: Any, number: signal.Signals
) -> None:
    """HARN-07."""
    process, below = hanging(program, tmp_path, descendants)
    process.send_signal(number)
    process.wait(timeout=60)
    assert_gone(below)


def test_interrupt_ends_the_ranks_and_is_raised_again(
    program: Any, tmp_path: Path, descendants: Any, unrelated: Any
) -> None:
    """HARN-07: Ctrl-C reaches the parent alone, as workers aren't in the terminal's foreground group."""
    source = HANGING.replace(
        'meshsim.run(scenario, "dp=3", backend="gloo", timeout=600)',
        """try:
    meshsim.run(scenario, "dp=3", backend="gloo", timeout=600)
except KeyboardInterrupt:
    print(meshsim.run(lambda ctx: ctx.rank, "dp=3", backend="gloo").returns)
    raise
""",
    )
    process = program(source)
    wait_until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(3)), process)
    below = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert out == "[0, 1, 2]\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert_gone(below)


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("import os; os._exit(3)", id="os._exit"),
        pytest.param("", id="normal", marks=pytest.mark.long),
        pytest.param("raise SystemExit(2)", id="SystemExit", marks=pytest.mark.long),
        pytest.param("import os; os.kill(os.getpid(), 9)", id="SIGKILL", marks=pytest.mark.long),
    ],
)
def test_idle_workers_end_with_the_parent(program: Any, descendants: Any, ending: str) -> None:
    process = program(IDLE + "\nsys.stdin.read()\n" + ending, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "[0, 1, 2]\n"
    below = descendants(process.pid)
    assert len(below) >= 4
    process.stdin.close()
    process.wait(timeout=60)
    assert process.stderr.read() == ""
    assert_gone(below)


def test_parent_killed_while_the_server_loads(program: Any, descendants: Any) -> None:
    process = program(
        "import os, sys\nfrom meshsim.worlds.gloo import warm_up\nwarm_up(2)\nprint('asked', flush=True)\n"
        "os.kill(os.getpid(), 19)\n"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    below = descendants(process.pid)
    assert len(below) == 1
    process.kill()
    assert_gone(below)


def test_child_forked_by_the_parent_neither_keeps_workers_alive_nor_uses_them(
    program: Any, descendants: Any
) -> None:
    source = (
        IDLE
        + """
import os
child = os.fork()
if child == 0:
    print(meshsim.run(lambda ctx: ctx.rank + 10, "dp=2", backend="gloo").returns, flush=True)
    time.sleep(600)
print(meshsim.run(lambda ctx: ctx.rank + 20, "dp=2", backend="gloo").returns, flush=True)
time.sleep(600)
"""
    )
    process = program(source)
    assert process.stdout is not None
    lines = {process.stdout.readline() for _ in range(3)}
    assert lines == {"[0, 1, 2]\n", "[10, 11]\n", "[20, 21]\n"}
    forked = next(p for p in psutil.Process(process.pid).children() if "program.py" in p.cmdline()[-1])
    of_fork = descendants(forked.pid)
    of_parent = [p for p in descendants(process.pid) if p not in of_fork and p != forked]
    assert len(of_parent) == 4
    process.kill()
    assert_gone(of_parent)
    assert all(p.is_running() for p in of_fork)
    forked.kill()
    assert_gone(of_fork)


def test_no_shared_memory_and_no_temporary_file_stays(program: Any, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    process = program(
        "import torch, meshsim\n"
        "def scenario(ctx):\n"
        "    t = torch.ones(1000).share_memory_()\n"
        "    import os; os.kill(os.getpid(), 9)\n"
        "result = meshsim.run(scenario, 'dp=2', backend='gloo')\n"
        "print(meshsim.run(lambda ctx: 1, 'dp=2', backend='gloo').returns)\n",
        env={**os.environ, "TMPDIR": str(folder)},
    )
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("[1, 1]\n", "")
    # torch makes a folder for its compiler's cache when that is imported.
    assert [name for name in os.listdir(folder) if not name.startswith("torchinductor_")] == []
    left = (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) - shared
    assert [name for name in left if name.startswith("torch_")] == []


def test_process_that_a_scenario_leaves_is_ended(values: Any) -> None:
    def scenario(ctx: Any) -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

    left = [psutil.Process(pid) for pid in values(scenario) if psutil.pid_exists(pid)]
    assert values(lambda ctx: ctx.rank) == [0, 1]
    assert_gone(left)
