"""Outcomes of several ranks make one report, the same in each world."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("row", ["HARN-09"])
def test_all_ranks_skip_and_the_next_test_runs(row, run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=4")
        def test_skipped():
            pytest.skip("x")

        @pytest.mark.mesh("dp=4")
        def test_next(rank_context):
            assert rank_context.world_size == 4
        """,
        f"--mesh-backend={backend}",
        "-rs",
    )
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1[]] test_suite.py:*: x"])


@pytest.mark.parametrize("row", ["HARN-10"])
@pytest.mark.parametrize("waits", [True, False], ids=["others wait", "others return"])
def test_one_rank_skips(row, waits, run_suite, backend):
    result = run_suite(
        f"""
        import pytest, torch.distributed as dist

        @pytest.mark.mesh("dp=4")
        def test_odd(rank_context):
            if rank_context.rank == 1:
                pytest.skip("x")
            if {waits}:
                dist.barrier()
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ranks 0, 2, 3 ran, rank 1 skipped (x)"])


@pytest.mark.parametrize("row", ["HARN-11"])
def test_xfail_on_all_ranks(row, run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=2")
        @pytest.mark.xfail(raises=ValueError, reason="known", strict=True)
        def test_marked():
            raise ValueError("as known")

        @pytest.mark.mesh("dp=2")
        @pytest.mark.xfail(raises=KeyError)
        def test_marked_for_another_error():
            raise ValueError("not that")

        @pytest.mark.mesh("dp=2")
        @pytest.mark.xfail(strict=True)
        def test_marked_and_passes():
            pass

        @pytest.mark.mesh("dp=2")
        def test_called():
            pytest.xfail("later")
        """,
        f"--mesh-backend={backend}",
        "-rx",
    )
    result.assert_outcomes(xfailed=2, failed=2)
    result.stdout.fnmatch_lines(["XFAIL test_suite.py::test_marked - known"])
    result.stdout.fnmatch_lines(["XFAIL test_suite.py::test_called - *later"])


@pytest.mark.parametrize("row", ["HARN-11"])
@pytest.mark.parametrize(
    ("call", "told"), [("pytest.xfail('later')", "xfailed"), ("pytest.exit('stop')", "called pytest.exit")]
)
def test_one_rank_ends_otherwise(row, call, told, run_suite, backend):
    result = run_suite(
        f"""
        import pytest

        @pytest.mark.mesh("dp=3")
        def test_odd(rank_context):
            if rank_context.rank == 2:
                {call}

        @pytest.mark.mesh("dp=3")
        def test_next():
            pass
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([f"*ranks 0, 1 ran, rank 2 {told} (*"])


@pytest.mark.parametrize("row", ["HARN-11"])
def test_all_ranks_call_exit(row, run_suite, backend):
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=2")
        def test_ends_it_all():
            pytest.exit("enough", returncode=7)

        def test_never_reached():
            raise AssertionError
        """,
        f"--mesh-backend={backend}",
    )
    assert result.ret == 7
    result.stdout.fnmatch_lines(["*Exit: enough*"])


@pytest.mark.parametrize("row", ["HARN-13"])
def test_a_process_group_that_is_left(row, run_suite, backend, tmp_path):
    result = run_suite(
        f"""
        import pytest, torch, torch.distributed as dist

        @pytest.mark.mesh("dp=2")
        def test_a_leaves_one(rank_context):
            dist.destroy_process_group()
            dist.init_process_group(
                "gloo", init_method=f"file://{tmp_path}/a{{rank_context.rank}}", rank=0, world_size=1
            )

        @pytest.mark.mesh("dp=2")
        def test_b_is_clean(rank_context):
            assert dist.get_world_size() == 2
            x = torch.ones(1)
            dist.all_reduce(x)
            assert x.item() == 2

        @pytest.mark.mesh("dp=2")
        def test_c_ends_its_own(rank_context):
            group = dist.new_group([0, 1])
            dist.destroy_process_group(group)
            dist.destroy_process_group()

        @pytest.mark.mesh("dp=2")
        def test_d_is_clean():
            dist.barrier()
        """,
        f"--mesh-backend={backend}",
        "-rf",
    )
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.fnmatch_lines(["FAILED test_suite.py::test_a_leaves_one - ranks 0, 1: left a process*"])


@pytest.mark.parametrize("row", ["HARN-13"])
def test_a_process_group_left_by_an_ordinary_test(row, run_suite, tmp_path):
    result = run_suite(
        f"""
        import pytest, torch.distributed as dist

        def test_a_leaves_one_in_this_process():
            dist.init_process_group("gloo", init_method="file://{tmp_path}/a", rank=0, world_size=1)

        @pytest.mark.mesh("dp=2")
        def test_b_is_clean():
            assert dist.get_world_size() == 2
            dist.barrier()

        def test_c_finds_its_own_again():
            assert dist.get_world_size() == 1
            dist.destroy_process_group()
        """
    )
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize("row", ["MESH-91"])
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_more_ranks_than_the_job_has(row, strict, run_suite, monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    result = run_suite(
        """
        import pytest

        @pytest.mark.mesh("dp=8")
        def test_big():
            pass
        """,
        "--mesh-backend=gloo",
        "-rsf",
        *(["--mesh-strict"] if strict else []),
    )
    if strict:
        result.assert_outcomes(failed=1)
    else:
        result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs 8 ranks, have 2*"])
