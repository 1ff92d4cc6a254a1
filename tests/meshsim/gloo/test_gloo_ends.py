"""No false pass, and the first cause first: raise, exit, signal, in every rank's own words."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshsim.checker.judge import judge
from meshsim.report import RankFailure, RankReport, RankState, WorldReport
from meshsim.worlds.gloo.accounts import put_first_cause_first


def states(report: WorldReport) -> list[str]:
    return [rank.state.value for rank in report.ranks]


def first_cause(report: WorldReport) -> int:
    """The rank that the report's own facts put first."""
    ended = [rank for rank in report.ranks if rank.state not in (RankState.BLOCKED, RankState.STOPPED)]
    causes = [rank for rank in ended if rank.failure is None or not rank.failure.peer_lost]
    return min(causes, key=lambda rank: rank.ended).rank


def test_raising_rank_heads_and_the_others_are_stopped(run: Any) -> None:
    """HARN-02."""

    def scenario(ctx: Any) -> None:
        if ctx.rank == 1:
            raise ValueError("at once")
        dist.all_reduce(torch.ones(4))

    report = run(scenario, 4, timeout=1800)
    assert states(report) == ["blocked", "raised", "blocked", "blocked"]
    assert report.deadline is None
    assert report.ranks[1].failure.message == "at once"
    assert report.ranks[0].pending.op == "all_reduce"
    assert "dist.all_reduce(torch.ones(4))" in report.ranks[0].stack
    verdict = judge(None, report)
    assert (verdict.kind.value, verdict.ranks) == ("raised", (1,))


def lose_connections(ctx: Any) -> None:
    dist.all_reduce(torch.ones(1))
    if ctx.rank == 2:
        raise ValueError("the cause")
    dist.all_reduce(torch.ones(1))


def kill_rank_2(ctx: Any) -> None:
    dist.all_reduce(torch.ones(1))
    if ctx.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def exit_rank_2(ctx: Any) -> None:
    dist.all_reduce(torch.ones(1))
    if ctx.rank == 2:
        os._exit(0)
    dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize(
    ("scenario", "kind"),
    [(lose_connections, "raised"), (kill_rank_2, "killed"), (exit_rank_2, "exited")],
    ids=["raise", "kill", "exit"],
)
@pytest.mark.parametrize("times", [3, pytest.param(100, marks=pytest.mark.long)])
def test_first_cause_is_first_every_time(run: Any, scenario: Any, kind: str, times: int) -> None:
    """HARN-03."""
    for _ in range(times):
        report = run(scenario, 4)
        assert report.ranks[2].state.value == kind
        assert first_cause(report) == 2
        verdict = judge(None, report)
        assert (verdict.kind.value, verdict.ranks) == (kind, (2,))
        others = [report.ranks[rank] for rank in (0, 1, 3)]
        assert all(other.state is RankState.BLOCKED or other.failure.peer_lost for other in others)


def test_process_that_died_goes_before_those_that_felt_it() -> None:
    felt = RankFailure("RuntimeError", "Connection closed by peer", "", peer_lost=True)
    reports = [
        RankReport(0, RankState.RAISED, failure=felt, ended=1.0),
        RankReport(1, RankState.RAISED, failure=felt, ended=1.1),
        RankReport(2, RankState.KILLED, signal="SIGKILL", ended=1.2),
    ]
    put_first_cause_first(reports)
    assert min(reports, key=lambda report: report.ended).rank == 2


def test_traceback_is_that_of_the_raising_rank(run: Any) -> None:
    """HARN-03: as it would look in-process, with nothing of the harness."""
    failure = run(lose_connections, 4).ranks[2].failure
    assert failure.traceback.startswith("Traceback (most recent call last):\n")
    assert failure.traceback.rstrip().endswith("ValueError: the cause")
    assert failure.traceback.count("  File ") == 1


def segfault(ctx: Any) -> None:
    if ctx.rank == 1:
        sys.stderr.write("last words\n")
        print("last line", end="")
        ctypes.string_at(0)
    dist.barrier()


def abort(ctx: Any) -> None:
    if ctx.rank == 1:
        sys.stderr.write("last words\n")
        print("last line", end="")
        os.abort()
    dist.barrier()


@pytest.mark.parametrize(("scenario", "name"), [(segfault, "SIGSEGV"), (abort, "SIGABRT")])
def test_crash_names_the_signal_and_shows_output_and_stack(run: Any, scenario: Any, name: str) -> None:
    """HARN-04."""
    crashed = run(scenario, 2).ranks[1]
    assert (crashed.state, crashed.signal) == (RankState.KILLED, name)
    assert crashed.stdout == "last line"
    assert "last words" in crashed.stderr
    assert f"in {scenario.__name__}" in crashed.stack


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_kill_from_outside_is_named(run: Any, number: signal.Signals) -> None:
    def scenario(ctx: Any) -> None:
        if ctx.rank == 0:
            os.kill(os.getpid(), number)
        dist.barrier()

    report = run(scenario, 2)
    assert (report.ranks[0].state, report.ranks[0].signal) == (RankState.KILLED, number.name)


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        pytest.param(lambda: sys.exit(0), 0, id="sys.exit(0)"),
        pytest.param(lambda: sys.exit(), 0, id="sys.exit()"),
        pytest.param(lambda: sys.exit("message"), 1, id="sys.exit(message)"),
        pytest.param(lambda: os._exit(0), 0, id="os._exit(0)"),
        pytest.param(lambda: os._exit(3), 3, id="os._exit(3)"),
    ],
)
def test_exit_is_never_a_pass(run: Any, leave: Any, code: int) -> None:
    """HARN-05."""

    def scenario(ctx: Any) -> int:
        if ctx.rank == 1:
            leave()
        return 1

    report = run(scenario, 2)
    assert (report.ranks[1].state, report.ranks[1].exit_code) == (RankState.EXITED, code)
    assert not judge(None, report).ok


def test_every_rank_exiting_with_zero_is_no_pass(run: Any) -> None:
    report = run(lambda ctx: os._exit(0), 3)
    assert states(report) == ["exited"] * 3


def test_worker_that_never_reaches_the_scenario_is_no_pass(run: Any, empty_pool: Any) -> None:
    """HARN-05: a worker killed while it was idle is replaced; one killed at its start fails the run."""
    run(lambda ctx: 1, 2)
    victims = [worker for worker in empty_pool.workers if worker.pid is not None]
    for worker in victims:
        os.kill(worker.pid, signal.SIGKILL)
    after = states(run(lambda ctx: 1, 2))
    assert after == ["returned"] * 2 or "killed" in after
    assert states(run(lambda ctx: 1, 2)) == ["returned"] * 2


def test_exit_from_another_thread_is_no_pass(run: Any) -> None:
    def scenario(ctx: Any) -> int:
        if ctx.rank == 0:
            thread = threading.Thread(target=os._exit, args=(0,))
            thread.start()
            thread.join()
        return 1

    assert states(run(scenario, 2))[0] == "exited"


def test_child_that_a_rank_forked_does_not_answer_for_it(run: Any) -> None:
    def scenario(ctx: Any) -> int:
        child = os.fork()
        if child == 0:
            return -1
        os.waitpid(child, 0)
        return int(ctx.rank)

    report = run(scenario, 2)
    assert [rank.value for rank in report.ranks] == [0, 1]


def test_ranks_that_go_on_after_a_failure_are_stopped_and_shown(run: Any) -> None:
    def scenario(ctx: Any) -> None:
        if ctx.rank == 0:
            raise RuntimeError("first")
        while True:
            pass

    report = run(scenario, 2)
    assert states(report) == ["raised", "stopped"]
    assert "while True:" in report.ranks[1].stack or "pass" in report.ranks[1].stack


def test_results_of_ranks_that_returned_are_kept(run: Any) -> None:
    def scenario(ctx: Any) -> str:
        if ctx.rank == 1:
            raise RuntimeError("no")
        return f"rank {ctx.rank}"

    report = run(scenario, 3)
    assert [rank.value for rank in report.ranks] == ["rank 0", None, "rank 2"]


def test_server_that_is_killed_ends_the_run_and_the_next_one_works(run: Any, pool: Any) -> None:
    run(lambda ctx: 1, 2)
    server = pool.server.pid

    def scenario(ctx: Any) -> None:
        if ctx.rank == 0:
            os.kill(ctx.params["server"], signal.SIGKILL)
        dist.barrier()
        time.sleep(60)

    report = run(scenario, 2, params={"server": server})
    assert states(report) == ["killed", "killed"]
    assert states(run(lambda ctx: 1, 2)) == ["returned", "returned"]
