"""meshlib's numbers: import time, plans of 131,072 ranks, and binding at 512 ranks against torch's threaded
group.

    python ci/bench/meshlib_numbers.py [--ranks 512] [--skip-torch] [--json FILE]

Exits with 1 when a number misses its target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

PLAN_RANKS = 131_072
PLAN_TARGET_MS = 5.0
IMPORT_TARGET = 3.0
BINDING_TARGET = 20.0


@dataclass
class Number:
    """One measured number; ``target`` is its limit, ``ok`` whether it holds."""

    name: str
    value: float
    unit: str
    target: str
    ok: bool

    def __str__(self) -> str:
        verdict = "ok  " if self.ok else "MISS"
        return f"{verdict}  {self.name}: {self.value:.4g} {self.unit} (target {self.target})"


def median_import_ms(modules: str, runs: int = 21) -> float:
    """Milliseconds that an import takes in a fresh interpreter, without the interpreter's own start."""
    code = (
        "import time; start = time.perf_counter(); "
        f"import {modules}; print(1000 * (time.perf_counter() - start))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # writes the bytecode
    runs_ms = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(runs)
    ]
    return statistics.median(runs_ms)


def import_numbers() -> list[Number]:
    bare, ours = median_import_ms("dataclasses, json"), median_import_ms("meshlib")
    code = "import sys, meshlib; print('torch' in sys.modules)"
    torch_came = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    ratio = ours / bare
    return [
        Number("import dataclasses, json", bare, "ms", "none", True),
        Number("import meshlib", ours, "ms", "none", True),
        Number(
            "import meshlib, times dataclasses and json",
            ratio,
            "x",
            f"<= {IMPORT_TARGET}",
            ratio <= IMPORT_TARGET,
        ),
        Number("torch imported", float(torch_came.strip() == "True"), "", "0", torch_came.strip() == "False"),
    ]


def plan_and_every_query(world_size: int, rank: int) -> None:
    """A plan with all views and a node size, and each question that can be asked about one rank."""
    from meshlib import MeshPlan

    dims = f"tp=8,cp=2,pp=16,ep=64,dp_replicate=8,dp={world_size // 256}"
    plan = MeshPlan.build(dims, world_size, node_size=8)
    for view in plan.views:
        place = plan.coordinate(rank, view)
        plan.rank(view=view, **place)
        plan.shape(view)
    for axis in plan.known_axes:
        plan.size(axis)
        plan.is_first(axis, rank)
        plan.is_last(axis, rank)
        if plan.size(axis) < 4096:
            plan.axis_of(plan.group(axis, rank))
            plan.neighbour(axis, rank, 1)
            plan.neighbour(axis, rank, -1, wrap=False)
            plan.local_rank(axis, rank)
    for axes in (("pp", "tp"), ("cp", "tp"), ("edp_shard", "ep"), ("pp", "ep")):
        plan.group(axes, rank)
    _ = plan.digest, plan.topology, plan.node(rank), plan.to_json()


def best_ms(call: Callable[[], Any], runs: int = 9) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return min(times)


def peak_kib(call: Callable[[], Any]) -> float:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1024


def plan_numbers() -> list[Number]:
    plan_and_every_query(PLAN_RANKS, 7)
    took = best_ms(lambda: plan_and_every_query(PLAN_RANKS, 77_777))
    small, large = (peak_kib(lambda n=n: plan_and_every_query(n, n // 2 + 1)) for n in (16_384, PLAN_RANKS))
    return [
        Number(
            f"plan of {PLAN_RANKS} ranks and every query for one",
            took,
            "ms",
            f"< {PLAN_TARGET_MS}",
            took < PLAN_TARGET_MS,
        ),
        # Groups are answers, and the largest ones asked for here grow with dp; the plan itself doesn't.
        Number("peak memory at 16,384 ranks", small, "KiB", "none", True),
        Number(f"peak memory at {PLAN_RANKS} ranks", large, "KiB", "< 1024", large < 1024),
    ]


def shape_of(ranks: int) -> tuple[str, list[tuple[tuple[int, ...], tuple[str, ...]]]]:
    """A topology with all three meshes, and the meshes as torch is asked for them."""
    tp, cp, ep, replicate = 8, 2, 8, 2
    dp = ranks // (tp * cp)
    topology = f"dp={dp},cp={cp},tp={tp},dp_replicate={replicate},ep={ep},edp_shard=2"
    return topology, [
        ((dp, cp, tp), ("dp", "cp", "tp")),
        ((replicate, dp * cp // replicate, tp), ("fsdp_replicate", "fsdp_shard", "tp")),
        ((ranks // (2 * ep), 2, ep), ("edp_replicate", "edp_shard", "ep")),
    ]


def span_of(intervals: list[tuple[float, float]]) -> float:
    """Seconds from the first rank's start to the last rank's end."""
    return max(end for _, end in intervals) - min(start for start, _ in intervals)


def seconds_for_meshlib(ranks: int) -> float:
    """All ranks bind a context with its three meshes in the fake world."""
    import torch.distributed as dist

    import meshsim
    from meshlib import build_mesh_context

    topology, _ = shape_of(ranks)

    def bind(ctx: Any) -> tuple[float, float]:
        # Between the barriers there is nothing but the binding: no rank starts or ends its thread there.
        dist.barrier()
        start = time.perf_counter()
        context = build_mesh_context(topology, ranks)
        end = time.perf_counter()
        dist.barrier()
        context.close()
        return start, end

    result = meshsim.run(bind, f"dp={ranks}", timeout=600)
    if not result.ok:
        raise SystemExit(f"the fake world failed: {result.verdict}")
    return span_of(result.returns)


def seconds_for_torch(ranks: int) -> float:
    """All ranks call torch's ``init_device_mesh`` for the same three meshes on its threaded test process
    group.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed import multi_threaded_pg

    _, meshes = shape_of(ranks)
    store = dist.HashStore()
    intervals: list[tuple[float, float]] = []
    errors: list[str] = []
    ended = threading.Semaphore(0)

    def rank_main(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
            start = time.perf_counter()
            for shape, names in meshes:
                init_device_mesh("cpu", shape, mesh_dim_names=names)
            intervals.append((start, time.perf_counter()))
        except BaseException:
            errors.append(traceback.format_exc())
            raise
        finally:
            ended.release()

    # As torch's own MultiThreadedTestCase sets it up: each thread has its own c10d world and group registry.
    multi_threaded_pg._install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    try:
        threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for _ in threads:
            ended.acquire()
            if errors:
                raise SystemExit(f"torch's threaded group failed: {errors[0]}")
        for thread in threads:
            thread.join()
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
        multi_threaded_pg._uninstall_threaded_pg()
    return span_of(intervals)


def binding_numbers(ranks: int, *, skip_torch: bool) -> list[Number]:
    seconds_for_meshlib(32)
    ours = min(seconds_for_meshlib(ranks) for _ in range(3))
    numbers = [
        Number(f"binding at {ranks} fake ranks", ours, "s", "none", True),
        Number("the same for each rank", 1000 * ours / ranks, "ms", "none", True),
    ]
    if not skip_torch:
        theirs = seconds_for_torch(ranks)
        ratio = theirs / ours
        numbers += [
            Number(f"torch's threaded group at {ranks} ranks", theirs, "s", "none", True),
            Number(
                "binding, times faster than torch",
                ratio,
                "x",
                f">= {BINDING_TARGET}",
                ratio >= BINDING_TARGET,
            ),
        ]
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=512, help="ranks to bind; a multiple of 16")
    parser.add_argument(
        "--skip-torch", action="store_true", help="leave out torch's threaded group, which takes minutes"
    )
    parser.add_argument("--json", metavar="FILE", help="write the numbers to a file")
    options = parser.parse_args()
    numbers = [
        *import_numbers(),
        *plan_numbers(),
        *binding_numbers(options.ranks, skip_torch=options.skip_torch),
    ]
    print(*numbers, sep="\n")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump([asdict(number) for number in numbers], file, indent=1)
    return 0 if all(number.ok for number in numbers) else 1


if __name__ == "__main__":
    sys.exit(main())
