"""Deadlocks known at once, and ranks that spin, sleep or block outside of communication."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshsim
from meshsim.report import RankState

MINUTES = 600.0
"""A deadline that these tests would notice."""


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def spin() -> None:
    while True:
        pass


def spin_and_swallow() -> None:
    for _ in range(3):
        with suppress(BaseException):
            spin()


OUTSIDE: dict[str, Callable[[], object]] = {
    "spins": spin,
    "swallows": spin_and_swallow,
    "sleeps": lambda: time.sleep(3600),
    "waits for an event": lambda: threading.Event().wait(),
    "waits for a thread": lambda: _join_a_thread_that_waits(),
    "waits for a future": lambda: torch.futures.Future().wait(),
}


def _join_a_thread_that_waits() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    try:
        thread.join()
    finally:
        gate.set()


@pytest.mark.parametrize("way", OUTSIDE)
def test_a_rank_that_is_stuck_outside_of_communication(way: str) -> None:
    def scenario(ctx: Any) -> None:
        dist.barrier()
        if ctx.rank == 1:
            OUTSIDE[way]()
        dist.barrier()

    result = meshsim.run(scenario, "dp=3", timeout=0.5)
    assert result.verdict.kind == "stuck"
    assert result.verdict.ranks == (1,)
    assert result.ranks[1].state is RankState.STUCK
    assert "test_stuck_ranks.py" in result.ranks[1].stack
    assert meshsim.run(lambda ctx: dist.barrier(), "dp=3").ok


DEADLOCKS: dict[str, tuple[Callable[[Any], object], tuple[int, ...]]] = {
    "both receive": (lambda ctx: dist.recv(torch.zeros(1), 1 - ctx.rank), (0, 1)),
    "both poll": (lambda ctx: _poll(dist.irecv(torch.zeros(1), 1 - ctx.rank)), (0, 1)),
    "one polls": (lambda ctx: ctx.rank or _poll(dist.irecv(torch.zeros(1), 1)), (1,)),
    "both poll the store": (lambda ctx: _poll_store(), (0, 1)),
    "one returns": (lambda ctx: ctx.rank or dist.barrier(), (1,)),
}


def _poll(work: dist.Work) -> None:
    while not work.is_completed():
        pass


def _poll_store() -> None:
    store = dist.distributed_c10d._get_default_store()
    while not store.check(["never set"]):
        pass


@pytest.mark.parametrize("name", DEADLOCKS)
def test_a_deadlock_is_known_without_waiting(name: str) -> None:
    scenario, culprits = DEADLOCKS[name]
    result = meshsim.run(scenario, "dp=2", timeout=MINUTES)
    assert not result.ok
    assert result.duration < MINUTES / 10
    assert set(result.verdict.ranks) & set(culprits)
    assert "test_stuck_ranks.py" in result.verdict.summary


def test_swallowing_the_end_of_a_run_is_no_pass() -> None:
    def scenario(ctx: Any) -> str:
        with suppress(BaseException):
            dist.recv(torch.zeros(1), 1 - ctx.rank)
        return "went on"

    result = meshsim.run(scenario, "dp=2", timeout=MINUTES)
    assert result.verdict.kind == "send recv cycle"
    assert result.returns == [None, None]


def test_swallowing_it_again_and_again_ends_too() -> None:
    def scenario(ctx: Any) -> None:
        for _ in range(100):
            with suppress(BaseException):
                dist.recv(torch.zeros(1), 1 - ctx.rank)

    assert meshsim.run(scenario, "dp=2", timeout=MINUTES).verdict.kind == "send recv cycle"


def test_communication_in_finally_does_not_hide_the_error() -> None:
    def scenario(ctx: Any) -> None:
        try:
            if ctx.rank == 1:
                raise LookupError("the cause")
            dist.all_reduce(torch.ones(1))
        finally:
            dist.barrier()

    verdict = meshsim.run(scenario, "dp=2", timeout=MINUTES).verdict
    assert not verdict.ok
    assert verdict.ranks == (1,) or verdict.kind == "operation mismatch"


def test_an_error_in_an_autograd_hook_is_the_rank_s(passed: Any) -> None:
    def scenario(ctx: Any) -> None:
        def hook(grad: torch.Tensor) -> torch.Tensor:
            if ctx.rank == 1:
                raise LookupError("in the hook")
            summed = grad.clone()
            dist.all_reduce(summed)
            return summed

        x = torch.ones(1, requires_grad=True)
        x.register_hook(hook)
        (x * 2).sum().backward()

    verdict = meshsim.run(scenario, "dp=2", timeout=MINUTES).verdict
    assert verdict.kind == "raised"
    assert verdict.ranks == (1,)
    assert "in the hook" in verdict.summary


def test_a_sleeping_rank_lets_the_others_go_first(passed: Any) -> None:
    order: list[int] = []

    def scenario(ctx: Any) -> None:
        time.sleep(0.02 * (3 - ctx.rank))
        order.append(ctx.rank)

    for seed in range(3):
        order.clear()
        passed(scenario, "dp=3", seed=seed)
        assert order == [2, 1, 0]


def test_waiting_for_another_rank_s_file(passed: Any, tmp_path: Any) -> None:
    def scenario(ctx: Any) -> str:
        path = tmp_path / "downloaded"
        if ctx.rank == 2:
            path.write_text("here")
        while not path.exists():
            time.sleep(0.001)
        return path.read_text()

    for seed in range(3):
        (tmp_path / "downloaded").unlink(missing_ok=True)
        assert passed(scenario, "dp=3", seed=seed) == ["here"] * 3


def test_a_thread_of_a_rank_may_communicate_while_the_rank_waits_for_it(passed: Any) -> None:
    def scenario(ctx: Any) -> list[float]:
        found: list[float] = []

        def communicate() -> None:
            for _ in range(3):
                x = torch.tensor([ctx.rank + 1.0])
                dist.all_reduce(x)
                found.append(x.item())

        thread = threading.Thread(target=communicate)
        thread.start()
        thread.join()
        dist.barrier()
        return found

    assert passed(scenario, "dp=3") == [[6, 6, 6]] * 3
