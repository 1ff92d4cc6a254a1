"""Running a scenario on gloo workers, and looking at the system afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from meshlib import MeshPlan, ParallelDims
from meshsim.report import WorldReport
from meshsim.worlds.base import RunRequest
from meshsim.worlds.gloo import GlooWorld
from meshsim.worlds.gloo.pool import Pool, pool_of_this_process


@pytest.fixture
def run() -> Callable[..., WorldReport]:
    """``run(scenario, ranks, **request)``: one run on the gloo world, dp over all ranks."""

    def run_on_workers(scenario: Callable[..., Any], ranks: int = 4, **request: Any) -> WorldReport:
        plan = MeshPlan.build(ParallelDims.parse(request.pop("topology", f"dp={ranks}")), ranks)
        return GlooWorld().run(RunRequest(scenario, plan, **request))

    return run_on_workers


@pytest.fixture
def values(run: Callable[..., WorldReport]) -> Callable[..., list[Any]]:
    """Like ``run``, for runs in which every rank returns: their values."""

    def values_of(scenario: Callable[..., Any], ranks: int = 2, **request: Any) -> list[Any]:
        report = run(scenario, ranks, **request)
        accounts = [
            f"rank {rank.rank} {rank.state.value} {rank.signal or ''}\n"
            f"{rank.failure and rank.failure.traceback}\n{rank.stderr}\n{rank.stack}"
            for rank in report.ranks
        ]
        assert [rank.state.value for rank in report.ranks] == ["returned"] * ranks, "\n".join(accounts)
        return [rank.value for rank in report.ranks]

    return values_of


@pytest.fixture
def pool() -> Pool:
    return pool_of_this_process()


@pytest.fixture
def empty_pool(pool: Pool) -> Pool:
    """The pool without the workers that earlier tests left idle: the next run's are the only ones."""
    for worker in list(pool.workers):
        pool.discard(worker)
    return pool


@pytest.fixture
def program(tmp_path: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python program of its own from source text; ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(
        source: str, *arguments: str, name: str = "program.py", **options: Any
    ) -> subprocess.Popen[str]:
        file = tmp_path / name
        file.write_text(source)
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, str(file), *arguments], text=True, cwd=tmp_path, **{**pipes, **options}
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def descendants() -> Callable[[int], list[psutil.Process]]:
    """All processes below one, the fork server and the workers among them."""
    return lambda pid: psutil.Process(pid).children(recursive=True)
