"""The fake world against what torch ships for many ranks in one process.

Every measurement runs in a process of its own and prints one JSON line: nothing is warm for one side only.

    python ci/bench/fake_world.py            # table, medians of three
    python ci/bench/fake_world.py --json F   # the figures as data
    python ci/bench/fake_world.py --quick    # smaller sizes, one run
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MESHES = {
    512: {"dense": (32, 2, 8), "fsdp": (4, 16, 8), "expert": (8, 8, 8)},
    64: {"dense": (8, 2, 4), "fsdp": (2, 8, 4), "expert": (4, 4, 4)},
}
TOPOLOGIES = {
    512: "dp=32,cp=2,tp=8,ep=8,dp_replicate=4,dp_shard=16,edp_shard=8",
    64: "dp=8,cp=2,tp=4,ep=4,dp_replicate=2,dp_shard=8,edp_shard=4",
}
ROUNDS = 200


# What each side does. Imports are inside: they are not what is measured.


def ours_three_meshes(ranks: int) -> float:
    import torch
    import torch.distributed as dist

    import meshsim

    def scenario(ctx: Any) -> None:
        for mesh in (ctx.mesh.device_mesh, ctx.mesh.fsdp_non_moe_mesh, ctx.mesh.fsdp_moe_mesh):
            for axis in mesh.mesh_dim_names:
                dist.all_reduce(torch.ones(4), group=mesh.get_group(axis))

    meshsim.run(scenario, "dp=2")
    began = time.perf_counter()
    result = meshsim.run(scenario, TOPOLOGIES[ranks], timeout=600)
    seconds = time.perf_counter() - began
    if not result.ok:
        raise SystemExit(str(result.verdict))
    return seconds


def threaded_three_meshes(ranks: int) -> float:
    """torch's threaded process group, driven as its MultiThreadedTestCase drives it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    names = {"dense": ("dp", "cp", "tp"), "fsdp": ("replicate", "shard", "tp"), "expert": ("r", "s", "ep")}

    def program(rank: int, store: dist.Store) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
        for kind, shape in MESHES[ranks].items():
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names[kind])
            for axis in names[kind]:
                dist.all_reduce(torch.ones(4), group=mesh.get_group(axis))

    def run() -> None:
        torch._C._distributed_c10d._set_thread_isolation_mode(True)
        threaded._install_threaded_pg()
        threaded.ProcessLocalGroup.reset()
        store = dist.HashStore()
        threads = [threading.Thread(target=program, args=(rank, store)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    torch.set_num_threads(1)
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def ours_all_reduces(ranks: int) -> float:
    """Microseconds a rank and call."""
    import torch
    import torch.distributed as dist

    import meshsim

    def scenario(ctx: Any) -> None:
        x = torch.ones(4)
        for _ in range(ctx.params["rounds"]):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)

    def timed(rounds: int) -> float:
        began = time.perf_counter()
        result = meshsim.run(scenario, f"dp={ranks}", timeout=900, params={"rounds": rounds})
        if not result.ok:
            raise SystemExit(str(result.verdict))
        return time.perf_counter() - began

    meshsim.run(scenario, "dp=2", params={"rounds": 1})
    without = timed(0)
    return (timed(ROUNDS) - without) / ranks / ROUNDS * 1e6


def ours_whole_run(ranks: int) -> float:
    """Seconds for binding the mesh of ``dp`` ranks and one all-reduce."""
    import torch
    import torch.distributed as dist

    import meshsim

    def scenario(ctx: Any) -> None:
        dist.all_reduce(torch.ones(4))

    meshsim.run(scenario, "dp=2")
    began = time.perf_counter()
    result = meshsim.run(scenario, f"dp={ranks}", timeout=600)
    if not result.ok:
        raise SystemExit(str(result.verdict))
    return time.perf_counter() - began


def local_tensor_all_gather(ranks: int) -> float:
    """torch's LocalTensorMode: one addition and one all-gather of a sharded tensor."""
    import torch
    import torch.distributed as dist
    from torch.distributed._local_tensor import LocalTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    began = time.perf_counter()
    with LocalTensorMode(ranks):
        mesh = init_device_mesh("cpu", (ranks,))
        x = distribute_tensor(torch.ones(ranks, 4), mesh, [Shard(0)])
        (x + x).redistribute(mesh, [Replicate()])
    return time.perf_counter() - began


def ours_all_gather(ranks: int) -> float:
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import meshsim

    def scenario(ctx: Any) -> None:
        mesh = ctx.mesh.device_mesh["dp"]
        x = distribute_tensor(torch.ones(ctx.world_size, 4), mesh, [Shard(0)])
        (x + x).redistribute(mesh, [Replicate()])

    meshsim.run(scenario, "dp=2")
    began = time.perf_counter()
    result = meshsim.run(scenario, f"dp={ranks}", timeout=600)
    if not result.ok:
        raise SystemExit(str(result.verdict))
    return time.perf_counter() - began


WORK: dict[str, Callable[[int], float]] = {
    function.__name__: function
    for function in (
        ours_three_meshes,
        threaded_three_meshes,
        ours_all_reduces,
        ours_whole_run,
        ours_all_gather,
        local_tensor_all_gather,
    )
}


def measure(name: str, ranks: int, runs: int) -> dict[str, Any]:
    """Median of several fresh processes; the reason where a peer can't do the work."""
    figures, peaks = [], []
    for _ in range(runs):
        command = [sys.executable, __file__, "--work", name, "--ranks", str(ranks)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            return {"work": name, "ranks": ranks, "failed": (done.stderr or done.stdout).strip()[-200:]}
        line = json.loads(done.stdout.strip().splitlines()[-1])
        figures.append(line["figure"])
        peaks.append(line["peak_mib"])
    return {
        "work": name,
        "ranks": ranks,
        "figure": statistics.median(figures),
        "peak_mib": statistics.median(peaks),
        "runs": runs,
    }


def show(rows: list[dict[str, Any]]) -> None:
    import torch

    table = Table(title=f"torch {torch.__version__}, Python {platform.python_version()}")
    for column in ("work", "ranks", "seconds (all_reduces: µs a rank and call)", "peak MiB"):
        table.add_column(column, overflow="fold")
    for row in rows:
        figure = row.get("failed") or f"{row['figure']:.3f}"
        table.add_row(row["work"], str(row["ranks"]), figure, f"{row.get('peak_mib', 0):.0f}")
    console = Console()
    console.print(table)
    found = {(row["work"], row["ranks"]): row.get("figure") for row in rows}
    for ours, theirs in (
        ("ours_three_meshes", "threaded_three_meshes"),
        ("ours_all_gather", "local_tensor_all_gather"),
    ):
        for (work, ranks), figure in found.items():
            other = found.get((theirs, ranks))
            if work == ours and figure and other:
                console.print(f"{ours} is {other / figure:.1f}x faster than {theirs} at {ranks} ranks")


def plan(quick: bool) -> list[tuple[str, int, int]]:
    if quick:
        return [(name, 64, 1) for name in WORK]
    return [
        ("ours_three_meshes", 512, 3),
        ("threaded_three_meshes", 512, 1),
        ("ours_all_gather", 512, 3),
        ("local_tensor_all_gather", 512, 1),
        ("ours_whole_run", 1024, 3),
        *(("ours_all_reduces", ranks, 3 if ranks < 1024 else 1) for ranks in (64, 256, 1024, 4096)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", choices=sorted(WORK))
    parser.add_argument("--ranks", type=int, default=64)
    options = parser.parse_args()
    if options.work:
        figure = WORK[options.work](options.ranks)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"figure": figure, "peak_mib": peak}), flush=True)
        return
    rows = [measure(*work) for work in plan(options.quick)]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
