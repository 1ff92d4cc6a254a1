"""What one scenario changes in its process, the next one on the same worker doesn't see."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist

from meshsim.report import RankState
from meshsim.worlds.gloo.pool import KEPT_IDLE

OF_THE_RUN = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "PYTEST_CURRENT_TEST")


def observe(ctx: Any) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "environment": {
            k: v for k, v in os.environ.items() if k not in ("MASTER_PORT", "TORCHELASTIC_RUN_ID")
        },
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "argv": list(sys.argv),
        "torch": torch.rand(3).tolist(),
        "python": random.random(),
        "numpy": float(numpy.random.rand()),
        "grad": torch.is_grad_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.empty(0).device),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "filters": len(warnings.filters),
        "logging": (logging.root.level, len(logging.root.handlers)),
        "recursion": sys.getrecursionlimit(),
        "alarm": str(signal.getsignal(signal.SIGALRM)),
        "excepthook": sys.excepthook.__name__,
        "modules": sorted(name for name in sys.modules if name.startswith("slate_")),
        "print": str(torch.tensor(1.23456789)),
        "initialized": dist.is_initialized(),
        "group": dist.get_world_size(),
        "rank": (ctx.rank, dist.get_rank()),
    }


def make_a_mess(ctx: Any) -> int:
    os.environ["SLATE"] = "dirty"
    os.environ.pop("PATH", None)
    os.chdir("/")
    sys.path.insert(0, ctx.params["folder"])
    sys.argv.append("dirty")
    import slate_module  # type: ignore[import-not-found]

    slate_module.COUNT += 1
    torch.rand(5)
    random.random()
    numpy.random.rand()
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.set_printoptions(precision=2)
    warnings.simplefilter("error")
    logging.basicConfig(level=logging.DEBUG, force=True)
    sys.setrecursionlimit(5000)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    sys.excepthook = lambda *_: None
    sys.stdout = None  # type: ignore[assignment]
    dist.new_group([0, 1])
    return os.getpid()


def test_next_run_sees_nothing_of_the_last(values: Any, tmp_path: Path) -> None:
    (tmp_path / "slate_module.py").write_text("COUNT = 0\n")
    before = values(observe)
    messed = values(make_a_mess, params={"folder": str(tmp_path)})
    after = values(observe)
    # The last run's own workers are what this is about; others may be idle sooner.
    while {state["pid"] for state in after} != set(messed):
        after = values(observe)
    for state in (*before, *after):
        del state["pid"]
    for name in before[0]:
        assert [state[name] for state in after] == [state[name] for state in before], name
    assert values(lambda ctx: print("still heard") or ctx.rank) == [0, 1]


def test_imported_module_starts_afresh(values: Any, tmp_path: Path) -> None:
    (tmp_path / "slate_counter.py").write_text("COUNT = 0\n")

    def count(ctx: Any) -> int:
        sys.path.insert(0, ctx.params["folder"])
        import slate_counter  # type: ignore[import-not-found]

        slate_counter.COUNT += 1
        return int(slate_counter.COUNT)

    for _ in range(2):
        assert values(count, params={"folder": str(tmp_path)}) == [1, 1]


def test_every_rank_starts_from_the_runs_seed(values: Any) -> None:
    def draw(ctx: Any) -> tuple[float, float, float]:
        return torch.rand(1, dtype=torch.float64).item(), random.random(), float(numpy.random.rand())

    expected = (
        torch.rand(1, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).item(),
        random.Random(5).random(),
        float(numpy.random.RandomState(5).rand()),
    )
    assert values(draw, 3, seed=5) == [expected] * 3
    assert values(draw, 3, seed=6)[0] != expected


def start_own_default_group(ctx: Any, *, leave: bool) -> int:
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.all_reduce(x)
    if not leave:
        dist.destroy_process_group()
    return int(x.item())


def test_default_group_that_is_left_fails_its_own_run_and_no_other(run: Any, values: Any) -> None:
    """HARN-13."""
    report = run(lambda ctx: start_own_default_group(ctx, leave=True), 2)
    assert [rank.state for rank in report.ranks] == [RankState.RAISED] * 2
    assert "left a process group" in report.ranks[0].failure.message
    assert values(lambda ctx: dist.get_world_size(), 3) == [3, 3, 3]


def test_group_that_the_scenario_destroyed_is_not_destroyed_twice(values: Any) -> None:
    """HARN-13."""
    assert values(lambda ctx: start_own_default_group(ctx, leave=False)) == [2, 2]
    assert values(lambda ctx: dist.destroy_process_group()) == [None, None]
    assert values(lambda ctx: dist.get_world_size()) == [2, 2]


def test_thread_that_is_left_costs_the_worker_its_place(values: Any) -> None:
    def leave_a_thread(ctx: Any) -> int:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        return os.getpid()

    left = set(values(leave_a_thread))
    assert left.isdisjoint(values(lambda ctx: os.getpid()))


def test_closed_standard_output_does_no_harm_to_the_next_run(values: Any) -> None:
    """Its number goes to the next socket that gloo opens."""

    def close_and_connect(ctx: Any) -> None:
        os.close(1)
        dist.barrier(group=dist.new_group([0, 1]))

    for _ in range(3):
        assert values(close_and_connect) == [None, None]
        assert values(sum_over_new_group) == [2.0, 2.0]


def sum_over_new_group(ctx: Any) -> float:
    x = torch.ones(1)
    dist.all_reduce(x, group=dist.new_group([0, 1]))
    return float(x.item())


def test_results_cached_for_one_mesh_are_not_used_on_another(values: Any) -> None:
    """DTensor caches results by mesh equality; the groups of an equal mesh of an earlier run are gone."""

    def shard_sum(ctx: Any) -> float:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        for _ in range(ctx.params["extra"]):
            dist.new_group(list(range(ctx.world_size)))
        mesh = init_device_mesh("cpu", (ctx.world_size,))
        x = distribute_tensor(torch.arange(float(ctx.world_size)), mesh, [Shard(0)])
        doubled = x * 2
        assert doubled.device_mesh is mesh
        return float(doubled.sum().full_tensor().item())

    # As many ranks as there are workers, so that each of them serves every run.
    for extra in (0, 3, 1):
        assert values(shard_sum, KEPT_IDLE, params={"extra": extra}) == [56.0] * KEPT_IDLE


@pytest.mark.parametrize("ranks", [1, 3])
def test_worker_serves_any_rank_of_any_world(values: Any, ranks: int) -> None:
    def where(ctx: Any) -> tuple[int, int, str, str]:
        return ctx.rank, ctx.world_size, os.environ["RANK"], os.environ["WORLD_SIZE"]

    assert values(where, ranks) == [(r, ranks, str(r), str(ranks)) for r in range(ranks)]
