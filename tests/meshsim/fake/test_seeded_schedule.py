"""Same seed, same run to the bit; other seeds, other interleavings."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist

import meshsim

SEEDS = range(12)


def busy(ctx: Any) -> list[Any]:
    """Several works under way at once, any-source receives, and sums that depend on the order."""
    tensors = [torch.randn(5) * 10.0**k + ctx.rank for k in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for work in reversed(works):
        work.wait()
    sources = []
    for _ in range(ctx.world_size - 1):
        if ctx.rank == 0:
            sources.append(dist.recv(torch.zeros(1)))
    if ctx.rank:
        dist.send(torch.ones(1), 0)
    return [sources, *(x.tolist() for x in tensors)]


def fingerprint(seed: int, *, shuffle: bool = False) -> str:
    result = meshsim.run(busy, "dp=2,tp=2", seed=seed, shuffle_reductions=shuffle)
    assert result.ok, result.verdict
    events = [
        (e.rank, e.op, e.group, e.number, e.shapes, e.peer, e.state.value, e.waited) for e in result.trace
    ]
    return hashlib.sha256(json.dumps([result.returns, events]).encode()).hexdigest()


def test_a_seed_gives_the_same_run_twice() -> None:
    for seed in SEEDS:
        assert fingerprint(seed, shuffle=True) == fingerprint(seed, shuffle=True)


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_seeded_schedule as here; print(here.fingerprint(5))"
    )
    for hash_seed in ("1", "2"):
        other = subprocess.run(
            [sys.executable, "-c", code, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert other.stdout.strip() == fingerprint(5)


def test_seeds_give_other_interleavings() -> None:
    orders = set()
    for seed in SEEDS:
        order: list[int] = []

        def scenario(ctx: Any, order: list[int] = order) -> None:
            for _ in range(3):
                order.append(ctx.rank)
                dist.barrier()

        assert meshsim.run(scenario, "dp=4", seed=seed).ok
        orders.add(tuple(order))
    assert len(orders) == len(SEEDS)


def test_seeds_give_other_orders_of_completion() -> None:
    orders = set()
    for seed in SEEDS:
        order: list[int] = []

        def scenario(ctx: Any, order: list[int] = order) -> None:
            works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(4)]
            if ctx.rank == 0:
                for at, work in enumerate(works):
                    work.get_future().add_done_callback(lambda _, at=at: order.append(at))
            # Whatever comes next may complete any of them.
            for _ in range(6):
                dist.barrier()
            for work in works:
                work.wait()

        assert meshsim.run(scenario, "dp=2", seed=seed).ok
        assert sorted(order) == [0, 1, 2, 3]
        orders.add(tuple(order))
    assert len(orders) > 2


def test_seeds_match_any_source_with_other_senders() -> None:
    firsts = set()
    for seed in SEEDS:

        def scenario(ctx: Any) -> int | None:
            if ctx.rank:
                dist.send(torch.ones(1), 0)
                return None
            sources = [dist.recv(torch.zeros(1)) for _ in range(3)]
            return sources[0]

        firsts.add(meshsim.run(scenario, "dp=4", seed=seed).returns[0])
    assert firsts == {1, 2, 3}


def test_reductions_go_in_rank_order_unless_shuffled() -> None:
    # (1 + 1e8) - 1e8 is 0 in float32, 1 + (1e8 - 1e8) is 1.
    values = [1.0, 1e8, -1e8]

    def scenario(ctx: Any) -> float:
        x = torch.tensor([values[ctx.rank]])
        dist.all_reduce(x)
        return x.item()

    plain = {meshsim.run(scenario, "dp=3", seed=seed).returns[0] for seed in SEEDS}
    shuffled = {
        meshsim.run(scenario, "dp=3", seed=seed, shuffle_reductions=True).returns[0] for seed in SEEDS
    }
    assert plain == {0.0}
    assert shuffled == {0.0, 1.0}
