"""The pool: warm, grown and shrunk with need, without collisions; and what a rank finds around it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from meshsim.worlds.gloo.pool import KEPT_IDLE, Pool


def own_pid(ctx: Any) -> int:
    return os.getpid()


def sum_of_ranks(ctx: Any) -> int:
    x = torch.tensor([float(ctx.rank)])
    dist.all_reduce(x)
    return int(x.item())


def test_workers_serve_run_after_run(values: Any, empty_pool: Pool) -> None:
    served = {pid for _ in range(6) for pid in values(own_pid, 4)}
    # Without a pool each run would have four of its own. A worker that is slow to clean up is replaced.
    assert len(served) < 6 * 4


def test_pool_grows_and_shrinks(values: Any, pool: Pool) -> None:
    values(own_pid, KEPT_IDLE + 3)
    assert len(pool.workers) == KEPT_IDLE + 3
    big = {worker.pid for worker in pool.workers}
    values(own_pid, 2)
    assert len(pool.workers) == KEPT_IDLE
    gone = [
        psutil.Process(pid) for pid in big - {w.pid for w in pool.workers} if pid and psutil.pid_exists(pid)
    ]
    assert psutil.wait_procs(gone, timeout=10)[1] == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 16, pytest.param(64, marks=pytest.mark.long)])
def test_any_world_size(values: Any, ranks: int) -> None:
    assert values(sum_of_ranks, ranks) == [ranks * (ranks - 1) // 2] * ranks


def test_server_forks_with_one_thread_although_the_parent_has_many(values: Any, pool: Pool) -> None:
    """HARN-06."""
    stop = threading.Event()
    busy = threading.Thread(
        target=lambda: [torch.rand(64, 64) @ torch.rand(64, 64) for _ in iter(stop.is_set, True)]
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    busy.start()
    try:
        torch.rand(512, 512) @ torch.rand(512, 512)
        got = values(lambda ctx: (torch.ones(256, 256) @ torch.ones(256, 256)).sum().item(), 4)
    finally:
        stop.set()
        busy.join()
        torch.set_num_threads(before)
    assert got == [float(256**3)] * 4
    assert psutil.Process(pool.server.pid).num_threads() == 1


def test_one_torch_thread_a_rank_unless_asked(values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert values(lambda ctx: torch.get_num_threads(), 2) == [1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert values(lambda ctx: torch.get_num_threads(), 2) == [2, 2]


def test_environment_is_that_of_torchrun(values: Any) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR")

    def read(ctx: Any) -> tuple[str, ...]:
        return tuple(os.environ[name] for name in ctx.params["names"])

    got = values(read, 2, params={"names": names})
    assert got == [("0", "0", "2", "2", "0", "0", "127.0.0.1"), ("1", "1", "2", "2", "0", "1", "127.0.0.1")]


def test_loopback_whatever_interface_the_user_chose(values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface0")
    monkeypatch.setenv("MASTER_ADDR", "203.0.113.1")
    monkeypatch.setenv("MASTER_PORT", "1")

    def listening(ctx: Any) -> set[str]:
        # As torch itself would make it; raises for an interface that isn't there.
        dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=5))
        dist.barrier()
        found = psutil.Process().net_connections(kind="all")
        ends = [end for entry in found for end in (entry.laddr, entry.raddr)]
        return {end.ip for end in ends if isinstance(end, tuple) and end}

    assert values(listening, 2) == [{"127.0.0.1"}] * 2


def test_timeouts_of_groups_reach_gloo(values: Any) -> None:
    """HARN-08, the part that is the world's."""

    def timeouts(ctx: Any) -> list[float]:
        given = dist.new_group([0, 1], timeout=timedelta(seconds=20))
        groups = [dist.group.WORLD, given]
        return [g._get_backend(torch.device("cpu")).options._timeout.total_seconds() for g in groups]

    assert values(timeouts, 2) == [[1800.0, 20.0]] * 2


@pytest.fixture
def usual_port_taken() -> Iterator[None]:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", 29500))
            listener.listen()
        except OSError:
            pass  # somebody else has it, which is what is wanted
        yield


RUNS = """
import sys
import torch, torch.distributed as dist
import meshsim

def scenario(ctx):
    x = torch.tensor([ctx.params["mine"] * (ctx.rank + 1)])
    dist.all_reduce(x)
    return x.item()

mine = int(sys.argv[1])
for _ in range(int(sys.argv[2])):
    result = meshsim.run(scenario, "dp=4", backend="gloo", params={"mine": mine})
    assert result.returns == [mine * 10] * 4, (result.returns, str(result.verdict))
"""


@pytest.mark.parametrize(
    ("programs", "runs"), [(2, 6), pytest.param(8, 25, marks=pytest.mark.long)], ids=["2x6", "8x25"]
)
def test_programs_side_by_side_never_meet(
    tmp_path: Path, usual_port_taken: None, programs: int, runs: int
) -> None:
    """HARN-01."""
    file = tmp_path / "runs.py"
    file.write_text(RUNS)
    started = [
        subprocess.Popen(
            [sys.executable, str(file), str(10**i), str(runs)], stderr=subprocess.PIPE, text=True
        )
        for i in range(programs)
    ]
    errors = [process.communicate(timeout=280)[1] for process in started]
    assert errors == [""] * programs
    assert [process.returncode for process in started] == [0] * programs


def test_runs_from_two_threads_take_turns(values: Any) -> None:
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(values(sum_of_ranks, 3))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[3, 3, 3], [3, 3, 3]]


def test_thread_that_started_the_pool_may_end(values: Any) -> None:
    """The kernel's parent-death signal goes by threads; the server must outlive the one that started it."""
    source = (
        "import threading, meshsim\n"
        "def once(out):\n"
        "    import os\n"
        "    out.extend(meshsim.run(lambda ctx: os.getpid(), 'dp=2', backend='gloo').returns)\n"
        "first, second = [], []\n"
        "for out in (first, second):\n"
        "    thread = threading.Thread(target=once, args=(out,))\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "print(first == second)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True\n", done.stderr


def test_output_is_kept_by_rank_in_whole_lines(run: Any) -> None:
    """HARN-14, the part that is the world's."""

    def scenario(ctx: Any) -> None:
        for line in range(1000):
            print(f"rank {ctx.rank} line {line}")
        os.write(2, f"error of rank {ctx.rank}\n".encode())

    report = run(scenario, 8)
    for rank in report.ranks:
        assert rank.stdout == "".join(f"rank {rank.rank} line {line}\n" for line in range(1000))
        assert rank.stderr == f"error of rank {rank.rank}\n"


def test_output_of_c_code_and_child_processes_is_kept(run: Any) -> None:
    def scenario(ctx: Any) -> None:
        import ctypes

        ctypes.CDLL(None).puts(b"from C")
        subprocess.run(["/bin/echo", "from a child"], check=True)

    out = run(scenario, 1).ranks[0].stdout
    assert sorted(out.splitlines()) == ["from C", "from a child"]
