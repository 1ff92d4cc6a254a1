"""Together with other plugins: each in a pytest process of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_WORK = """
def work(rank):
    if rank == 3:
        return "only rank 3"
    return "the others"
"""
_SUITE = """
import os
import pytest, torch, torch.distributed as dist
import work

@pytest.mark.mesh("dp=4")
def test_works(rank_context):
    work.work(rank_context.rank)

@pytest.mark.mesh("dp=2", "tp=2", "pp=2")
@pytest.mark.parametrize("n", [1, 2])
def test_many(n, rank_context):
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2

@pytest.mark.mesh("dp=2")
def test_odd(rank_context):
    assert rank_context.rank == 0
"""


@pytest.fixture
def run_apart(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run a suite in its own process, with the plugins named in the options."""

    def run(*options: str, source: str = _SUITE) -> pytest.RunResult:
        pytester.makepyfile(test_suite=source, work=_WORK)
        pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options, timeout=150)

    return run


@pytest.mark.long
@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_xdist(run_apart, backend):
    result = run_apart("-n", "2", f"--mesh-backend={backend}", "--junit-xml=out.xml")
    result.assert_outcomes(passed=7, failed=1)
    result.stdout.fnmatch_lines(["dp=2, 2 ranks on *: rank 1 raised AssertionError*", "E * assert 1 == 0"])
    result.stdout.fnmatch_lines(["FAILED test_suite.py::test_odd - rank 1: *assert 1 == 0"])


@pytest.mark.long
@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_coverage_counts_what_only_one_rank_runs(run_apart, backend):
    result = run_apart(f"--mesh-backend={backend}", "--cov=work", "--cov-report=term-missing", "-k", "works")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["work.py * 4 * 0 * 100%*"])


@pytest.mark.long
def test_timeout_ends_a_hang(run_apart):
    result = run_apart(
        "--timeout=3",
        source="""
        import time, pytest

        @pytest.mark.mesh("dp=2", backend="gloo")
        def test_sleeps(rank_context):
            if rank_context.rank == 1:
                time.sleep(600)

        @pytest.mark.mesh("dp=2", backend="gloo")
        def test_next():
            pass
        """,
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*Timeout*"])


@pytest.mark.long
def test_reruns(run_apart):
    result = run_apart(
        "--reruns=2",
        source="""
        import pytest

        tries = []

        @pytest.fixture
        def attempt():
            tries.append(1)
            return len(tries)

        @pytest.mark.mesh("dp=2")
        def test_flaky(attempt, rank_context):
            assert attempt == 2 or rank_context.rank == 0
        """,
    )
    result.stdout.fnmatch_lines(["*1 passed, 1 rerun*"])


@pytest.mark.long
def test_asyncio_and_randomly(run_apart):
    result = run_apart(
        "-p",
        "randomly",
        source="""
        import asyncio, pytest

        @pytest.mark.asyncio
        @pytest.mark.mesh("dp=2")
        async def test_async(rank_context):
            await asyncio.sleep(0)
            assert rank_context.world_size == 2

        @pytest.mark.asyncio
        async def test_plain_async():
            await asyncio.sleep(0)
        """,
    )
    result.assert_outcomes(passed=2)
