"""The gloo world against the multi-process harnesses that torch ships.

Every measurement runs in a process of its own and prints one JSON line: nothing is warm for one side only.
torch's test classes need ``pip install expecttest``; without it their rows say so.

    python ci/bench/gloo_numbers.py            # table
    python ci/bench/gloo_numbers.py --json F   # the figures as data
    python ci/bench/gloo_numbers.py --quick    # fewer tests, one run of each
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RANKS = 4
TOPOLOGIES = {1: "dp=1", 4: "dp=2,tp=2", 16: "dp=4,tp=2,pp=2"}
CALLS = 2000
MISMATCH_DEADLINE = 600.0


# Whole sets of one-line tests, from the start of the interpreter on


def import_torch(tests: int) -> float:
    import torch.distributed  # noqa: F401

    return 0.0


def ours(tests: int) -> float:
    import torch  # noqa: F401

    import meshsim

    for _ in range(tests):
        assert meshsim.run(lambda ctx: ctx.rank, TOPOLOGIES[RANKS], backend="gloo").ok
    return 0.0


def mp_spawn(tests: int) -> float:
    import torch.multiprocessing as mp

    for _ in range(tests):
        mp.spawn(_spawned, args=(_free_port(),), nprocs=RANKS)
    return 0.0


def _spawned(rank: int, port: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    assert dist.get_rank() == rank
    dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_MULTI_PROCESS = """
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests

class Tests(MultiProcessTestCase):
    world_size = {ranks}

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def body(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        assert dist.get_rank() == self.rank
        dist.destroy_process_group()

for number in range({tests}):
    setattr(Tests, f"test_{{number}}", lambda self: self.body())
if __name__ == "__main__":
    run_tests()
"""

_CONTINUOUS = """
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest
from torch.testing._internal.common_utils import run_tests

class Tests(MultiProcContinuousTest):
    world_size = {ranks}

    @classmethod
    def backend_str(cls):
        return "gloo"

for number in range({tests}):
    setattr(Tests, f"test_{{number}}", lambda self: self.assertEqual(dist.get_rank(), self.rank))
if __name__ == "__main__":
    run_tests()
"""


def multi_process_test_case(tests: int) -> float:
    return _run_test_file(_MULTI_PROCESS, tests)


def multi_proc_continuous_test(tests: int) -> float:
    return _run_test_file(_CONTINUOUS, tests)


def _run_test_file(text: str, tests: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "torch_tests.py"
        file.write_text(text.format(ranks=RANKS, tests=tests))
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr.strip().splitlines()[-1])
    return 0.0


# Single figures, on a warm pool


def marginal(ranks: int) -> float:
    """Seconds for one more test."""
    import meshsim

    seconds = []
    for _ in range(40):
        began = time.perf_counter()
        assert meshsim.run(lambda ctx: ctx.rank, TOPOLOGIES[ranks], backend="gloo").ok
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[10:])


def raising_rank(ranks: int) -> float:
    """Seconds until a rank that raises at once is reported, while the others wait for it."""
    import torch
    import torch.distributed as dist

    import meshsim

    def scenario(ctx: Any) -> None:
        if ctx.rank == 1:
            raise ValueError("at once")
        dist.all_reduce(torch.ones(1))

    return _median_to_report(scenario, ranks, meshsim)


def certain_mismatch(ranks: int) -> float:
    """Seconds until a call that a rank leaves out is reported, with a deadline of ten minutes."""
    import torch
    import torch.distributed as dist

    import meshsim

    def scenario(ctx: Any) -> None:
        if ctx.rank != 1:
            dist.all_reduce(torch.ones(1))

    return _median_to_report(scenario, ranks, meshsim)


def _median_to_report(scenario: Callable[[Any], None], ranks: int, meshsim: Any) -> float:
    meshsim.run(lambda ctx: None, TOPOLOGIES[ranks], backend="gloo")
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        result = meshsim.run(scenario, TOPOLOGIES[ranks], backend="gloo", timeout=MISMATCH_DEADLINE)
        seconds.append(time.perf_counter() - began)
        assert not result.ok
        assert 1 in result.verdict.ranks
    return statistics.median(seconds)


# 16-byte all-reduces: seconds for one


def _timed_calls() -> float:
    import torch
    import torch.distributed as dist

    x = torch.ones(4)
    for _ in range(100):
        dist.all_reduce(x)
    dist.barrier()
    began = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(x)
    return (time.perf_counter() - began) / CALLS


def all_reduce_ours(ranks: int) -> float:
    import meshsim

    result = meshsim.run(lambda ctx: _timed_calls(), f"dp={ranks}", backend="gloo")
    assert result.ok, str(result.verdict)
    return float(max(result.returns))


def all_reduce_plain(ranks: int) -> float:
    return _all_reduce_spawned(ranks)


def all_reduce_detail(ranks: int) -> float:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return _all_reduce_spawned(ranks)


def _all_reduce_spawned(ranks: int) -> float:
    import torch.multiprocessing as mp

    answers = mp.get_context("spawn").SimpleQueue()
    mp.spawn(_time_spawned, args=(ranks, _free_port(), answers), nprocs=ranks)
    return float(answers.get())


def _time_spawned(rank: int, ranks: int, port: int, answers: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    mine = _timed_calls()
    longest = torch.tensor([mine])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    if rank == 0:
        answers.put(longest.item())
    dist.destroy_process_group()


SETS = (import_torch, ours, multi_proc_continuous_test, mp_spawn, multi_process_test_case)
FIGURES = (
    marginal,
    raising_rank,
    certain_mismatch,
    all_reduce_plain,
    all_reduce_ours,
    all_reduce_detail,
)
WORK: dict[str, Callable[[int], float]] = {function.__name__: function for function in (*SETS, *FIGURES)}


def measure(name: str, size: int, runs: int) -> dict[str, Any]:
    """Median of several fresh processes; the reason where a peer can't do the work."""
    walls, figures = [], []
    for _ in range(runs):
        began = time.perf_counter()
        command = [sys.executable, __file__, "--work", name, "--size", str(size)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        walls.append(time.perf_counter() - began)
        if done.returncode:
            return {"work": name, "size": size, "failed": (done.stderr or done.stdout).strip()[-200:]}
        figures.append(json.loads(done.stdout.strip().splitlines()[-1])["figure"])
    return {
        "work": name,
        "size": size,
        "wall": statistics.median(walls),
        "figure": statistics.median(figures),
        "runs": runs,
    }


def show(sets: list[dict[str, Any]], figures: list[dict[str, Any]]) -> None:
    import torch

    console = Console()
    table = Table(
        title=f"one-line tests at {RANKS} ranks, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    for column in ("harness", "tests", "seconds, start to end"):
        table.add_column(column, overflow="fold")
    for row in sets:
        table.add_row(row["work"], str(row["size"]), row.get("failed") or f"{row['wall']:.2f}")
    console.print(table)
    table = Table(title="single figures")
    for column in ("what", "ranks", "milliseconds"):
        table.add_column(column, overflow="fold")
    for row in figures:
        table.add_row(row["work"], str(row["size"]), row.get("failed") or f"{1000 * row['figure']:.3f}")
    console.print(table)
    walls = {row["work"]: row.get("wall") for row in sets}
    if walls["ours"] and walls["import_torch"]:
        console.print(f"ours takes {walls['ours'] - walls['import_torch']:.2f} s more than importing torch")
    calls = {row["work"]: row.get("figure") for row in figures}
    if calls["all_reduce_plain"] and calls["all_reduce_ours"] and calls["all_reduce_detail"]:
        plain = calls["all_reduce_plain"]
        console.print(
            f"a 16-byte all-reduce costs {calls['all_reduce_ours'] / plain:.2f} times plain gloo's; "
            f"with TORCH_DISTRIBUTED_DEBUG=DETAIL {calls['all_reduce_detail'] / plain:.2f} times"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", choices=sorted(WORK))
    parser.add_argument("--size", type=int, default=RANKS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps({"figure": WORK[options.work](options.size)}), flush=True)
        return
    tests, runs = (3, 1) if options.quick else (20, 3)
    sets = [measure(f.__name__, tests, runs if f in (import_torch, ours) else 1) for f in SETS]
    wanted = [(marginal, RANKS), (marginal, 16), *((f, RANKS) for f in FIGURES[1:])]
    figures = [measure(function.__name__, size, runs) for function, size in wanted]
    show(sets, figures)
    if options.json:
        options.json.write_text(json.dumps({"sets": sets, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
