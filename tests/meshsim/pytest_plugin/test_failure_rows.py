"""What a failed mesh test shows: the odd rank's own values, in each world."""

from __future__ import annotations

import pytest

_ODD = """
    import pytest
    from helper import check

    @pytest.mark.mesh("dp=4")
    def test_in_the_test(rank_context):
        found = [1, 2]
        if rank_context.rank == 1:
            assert found == [1, 3]

    @pytest.mark.mesh("dp=4")
    def test_in_a_helper(rank_context):
        check([1, 2] if rank_context.rank == 1 else [1, 3])
"""


@pytest.mark.parametrize("row", ["HARN-15"])
@pytest.mark.parametrize("registered", [True, False], ids=["rewritten helper", "plain helper"])
def test_values_of_an_assertion_on_one_rank(row, registered, run_suite, backend, pytester):
    if registered:
        pytester.makeconftest("import pytest\npytest.register_assert_rewrite('helper')")
    result = run_suite(
        _ODD,
        f"--mesh-backend={backend}",
        helper="""
        def check(found):
            assert found == [1, 3]
        """,
    )
    result.assert_outcomes(failed=2)
    for name, line in (("test_in_the_test", "test_suite.py:8"), ("test_in_a_helper", "helper.py:2")):
        result.stdout.fnmatch_lines(
            [
                f"_* {name} _*",
                "dp=4, 4 ranks on *: rank 1 raised AssertionError at *",
                "E * assert [[]1, 2[]] == [[]1, 3[]]",
                "E * At index 1 diff: 2 != 3",
                f"{line}: AssertionError",
                "0, 2, 3 *passed*",
            ]
        )
    result.stdout.fnmatch_lines(
        ["FAILED test_suite.py::test_in_the_test - rank 1: assert [[]1, 2[]] == [[]1, 3[]]*"]
    )


@pytest.mark.parametrize("row", ["HARN-15"])
def test_a_helper_that_is_called_through_its_module(row, run_suite, backend, pytester):
    pytester.makeconftest("import pytest\npytest.register_assert_rewrite('helper')")
    result = run_suite(
        """
        import helper, pytest

        @pytest.mark.mesh("dp=2")
        def test_in_a_helper(rank_context):
            helper.check(rank_context.rank, {"a": 1})
        """,
        f"--mesh-backend={backend}",
        helper="""
        def check(rank, found):
            if rank == 1:
                assert found["a"] == len(found) + 1
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E * assert 1 == (1 + 1)", "E *where 1 = len({'a': 1})"])


@pytest.mark.parametrize("row", ["HARN-14"])
def test_output_is_kept_apart_by_rank_in_whole_lines(row, run_suite, backend):
    result = run_suite(
        """
        import sys, logging, pytest, torch.distributed as dist

        @pytest.mark.mesh("dp=8")
        def test_prints(rank_context):
            for i in range(1000):
                sys.stdout.write(f"line {i} ")
                if i == 500:
                    dist.barrier()
                sys.stdout.write(f"of {rank_context.rank}\\n")
            print("error", file=sys.stderr)
            logging.getLogger("mine").warning("logged\\nand more")
        """,
        f"--mesh-backend={backend}",
        "-rP",
        "-v",
    )
    result.assert_outcomes(passed=1)
    lines = [line for line in result.outlines if line.startswith("[rank")]
    for rank in range(8):
        prefix = f"[rank{rank}] "
        mine = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert mine[0].endswith("logged")
        assert mine[1].strip() == "and more"
        assert mine[2:1002] == [f"line {i} of {rank}" for i in range(1000)]
        assert mine[1002] == "error"
    assert len(lines) == 8 * 1003
    assert sum(line.startswith("test_suite.py::test_prints") for line in result.outlines) == 1
    result.stdout.fnmatch_lines(["*Captured log call*", "*Captured stdout call*", "*Captured stderr call*"])


@pytest.mark.parametrize("row", ["HARN-14"])
def test_output_filtered_by_rank(row, run_suite):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=6")
        def test_prints(rank_context):
            print("here")
        """,
        "-rP",
        "--mesh-show-ranks=1,3-4",
    )
    assert [line for line in result.outlines if "here" in line] == [f"[rank{r}] here" for r in (1, 3, 4)]


def test_different_failures_are_each_shown_once(run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=5")
        def test_odd(rank_context):
            rank = rank_context.rank
            if rank in (1, 3):
                raise ValueError("first kind")
            if rank == 2:
                raise KeyError("second kind")
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert (
        text.count("E           ValueError: first kind")
        + text.count("E               ValueError: first kind")
        == 1
    )
    assert text.count("E           KeyError: 'second kind'") == 1
    result.stdout.fnmatch_lines(["1, 3 *raised *ValueError: first kind*"])


@pytest.mark.parametrize("row", ["HARN-03"])
def test_ranks_that_only_lost_a_peer_are_folded(row, run_suite):
    result = run_suite(
        """
        import pytest, torch, torch.distributed as dist

        @pytest.mark.mesh("dp=4", backend="gloo")
        def test_odd(rank_context):
            if rank_context.rank == 2:
                raise ValueError("the cause")
            dist.all_reduce(torch.ones(4))
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "dp=4, 4 ranks on gloo, seed 0: rank 2 raised ValueError*",
            "E * ValueError: the cause",
            "*- ranks -*",
        ]
    )


def test_a_deadlock_is_told_with_the_lines(run_suite, backend):
    result = run_suite(
        """
        import pytest, torch.distributed as dist

        @pytest.mark.mesh("dp=2")
        def test_hangs(rank_context):
            if rank_context.rank == 0:
                dist.barrier()
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*deadlock: *barrier*", "*test_suite.py:6*"])
    result.stdout.fnmatch_lines(["FAILED test_suite.py::test_hangs - *"])
