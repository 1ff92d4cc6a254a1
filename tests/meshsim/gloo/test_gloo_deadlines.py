"""Deadlines that hold, whatever a rank hangs in; and runs that end as soon as they can't succeed any more."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshsim.checker.judge import judge
from meshsim.report import RankState


def wait_in_python(ctx: Any) -> None:
    while True:
        time.sleep(0.01)


def wait_in_c_with_the_lock(ctx: Any) -> None:
    # A regular expression that backtracks for hours, without letting go of the interpreter's lock.
    import re

    re.match(r"(a+)+$", "a" * 60 + "b")


def stop_itself(ctx: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("hang", "shown"),
    [
        (wait_in_python, "in wait_in_python"),
        (wait_in_c_with_the_lock, "in wait_in_c_with_the_lock"),
        (stop_itself, "SIGSTOP"),
    ],
    ids=["python", "interpreter-lock", "stopped"],
)
def test_stuck_rank_is_stopped_and_shown(run: Any, values: Any, hang: Any, shown: str) -> None:
    def scenario(ctx: Any) -> Any:
        return hang(ctx) if ctx.rank == 1 else "done"

    report = run(scenario, 2, timeout=0.5)
    assert report.deadline == 0.5
    assert [rank.state for rank in report.ranks] == [RankState.RETURNED, RankState.STUCK]
    assert report.ranks[0].value == "done"
    assert shown in report.ranks[1].stack
    assert values(lambda ctx: ctx.rank) == [0, 1]


def test_rank_in_a_call_at_the_deadline_is_blocked_in_it(run: Any) -> None:
    def scenario(ctx: Any) -> None:
        if ctx.rank == 0:
            time.sleep(600)
        dist.all_reduce(torch.ones(3))

    report = run(scenario, 2, timeout=1.5)
    assert [rank.state for rank in report.ranks] == [RankState.STUCK, RankState.BLOCKED]
    assert report.ranks[1].pending.op == "all_reduce"
    assert report.ranks[1].trace[-1].op == "all_reduce"


def test_slow_rank_is_not_taken_for_a_missing_one(values: Any) -> None:
    def scenario(ctx: Any) -> float:
        if ctx.rank == 1:
            time.sleep(1.2)
        x = torch.ones(1)
        dist.all_reduce(x)
        return float(x.item())

    assert values(scenario) == [2.0, 2.0]


def skip_a_call(ctx: Any) -> None:
    if ctx.rank != 1:
        dist.all_reduce(torch.ones(2))


def different_operations(ctx: Any) -> None:
    x = torch.ones(2)
    if ctx.rank == 1:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)
    dist.barrier()
    dist.barrier()


def both_receive_first(ctx: Any) -> None:
    x = torch.ones(1)
    dist.recv(x, 1 - ctx.rank)
    dist.send(x, 1 - ctx.rank)


@pytest.mark.parametrize(
    ("scenario", "ranks"),
    [(skip_a_call, 4), (different_operations, 2), (both_receive_first, 2)],
)
def test_certain_mismatch_ends_the_run_long_before_its_deadline(run: Any, scenario: Any, ranks: int) -> None:
    report = run(scenario, ranks, timeout=1800)
    assert report.deadline is None
    verdict = judge(None, report)
    assert not verdict.ok
    assert scenario.__code__.co_filename.rsplit("/", 1)[-1] in verdict.summary


def test_call_that_makes_gloo_abort_is_in_the_trace_of_the_dead_rank(run: Any) -> None:
    """The process ends without a word; which call it was must be known all the same."""

    def scenario(ctx: Any) -> None:
        dist.all_reduce(torch.ones(1))
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    report = run(scenario, 2)
    mine = [event.op for event in report.ranks[1].trace if not event.internal]
    assert mine == ["all_reduce"]


def test_start_up_has_a_deadline_of_its_own(
    run: Any, monkeypatch: pytest.MonkeyPatch, empty_pool: Any
) -> None:
    from meshsim.worlds.gloo import supervision

    run(lambda ctx: 1, 2)
    stopped = [worker.pid for worker in empty_pool.workers]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(supervision, "TO_START", 0.5)
    monkeypatch.setattr("meshsim.worlds.gloo.pool._TO_GET_READY", 0.5)
    report = run(lambda ctx: 1, 2, timeout=600)
    assert {rank.state for rank in report.ranks} <= {RankState.NOT_STARTED, RankState.RETURNED}
    monkeypatch.undo()
    assert [rank.state for rank in run(lambda ctx: 1, 2).ranks] == [RankState.RETURNED] * 2
