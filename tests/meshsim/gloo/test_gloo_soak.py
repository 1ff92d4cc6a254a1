"""Many runs of mixed sizes and outcomes: memory, file descriptors and processes stay where they were."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from meshsim.worlds.gloo.pool import KEPT_IDLE, Pool


def passes(ctx: Any) -> float:
    x = torch.ones(1000)
    dist.all_reduce(x)
    return float(x[0].item())


def raises(ctx: Any) -> None:
    if ctx.rank == ctx.world_size - 1:
        raise ValueError("no")
    dist.barrier()


def exits(ctx: Any) -> None:
    if ctx.rank == 0:
        os._exit(1)
    dist.barrier()


def is_killed(ctx: Any) -> None:
    if ctx.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hangs(ctx: Any) -> None:
    threading.Event().wait()


def leaks(ctx: Any) -> int:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    dist.new_group([0])
    print("x" * 10_000)
    return 1


def makes_groups(ctx: Any) -> int:
    for _ in range(3):
        dist.barrier(group=dist.new_group(list(range(ctx.world_size))))
    return 1


# Most runs pass, as most tests do.
OUTCOMES: list[tuple[Callable[[Any], Any], str, int]] = [
    (passes, "returned", 6),
    (makes_groups, "returned", 2),
    (leaks, "returned", 1),
    (raises, "raised", 1),
    (exits, "exited", 1),
    (is_killed, "killed", 1),
    (hangs, "stuck", 1),
]


def in_use(pool: Pool) -> dict[str, int]:
    own, server = psutil.Process(), psutil.Process(pool.server.pid)
    return {
        "descriptors": own.num_fds(),
        "server descriptors": server.num_fds(),
        "memory": own.memory_info().rss + server.memory_info().rss,
        "threads": own.num_threads(),
        "processes": len(server.children(recursive=True)),
    }


@pytest.mark.parametrize("runs", [12, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(3000)])])
def test_soak(run: Any, values: Any, pool: Pool, runs: int) -> None:
    drawn = random.Random(0)
    before = None
    for number in range(runs):
        scenario, expected, _ = drawn.choices(OUTCOMES, [weight for *_, weight in OUTCOMES])[0]
        report = run(scenario, drawn.randint(1, 6), timeout=0.3 if scenario is hangs else 60)
        assert expected in {rank.state.value for rank in report.ranks}, scenario.__name__
        if number == min(60, runs // 2):
            before = settled(values, pool)
    after = settled(values, pool)
    assert before is not None
    for name in ("descriptors", "server descriptors", "threads", "processes"):
        assert after[name] <= before[name], name
    assert after["memory"] - before["memory"] < 30 * 2**20


def settled(values: Any, pool: Pool) -> dict[str, int]:
    """What is in use with a full pool whose workers are all idle."""
    values(passes, KEPT_IDLE)
    values(passes, KEPT_IDLE)
    return in_use(pool)
