"""Assertions that all ranks make together."""

from __future__ import annotations

_HEAD = """
        import pytest, torch, torch.distributed as dist
        import meshsim
"""


def test_ranks_that_agree(run_suite, backend):
    result = run_suite(
        _HEAD
        + """
        @pytest.mark.mesh("dp=2,tp=2")
        def test_agree(rank_context, mesh_context):
            assert meshsim.all_agree(3) == 3
            meshsim.all_agree(torch.arange(4.0))
            meshsim.all_agree({"a": [1, float("nan")]})
            meshsim.all_agree(mesh_context.dp_rank, along="tp")
            meshsim.differs_along("dp", mesh_context.dp_rank)
            meshsim.differs_along(("dp", "tp"), rank_context.rank)

        @pytest.mark.mesh("dp=1")
        def test_alone():
            meshsim.all_agree(object)
            meshsim.differs_along("dp", 0)
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(passed=2)


def test_the_odd_rank_is_named_on_all(run_suite, backend):
    result = run_suite(
        _HEAD
        + """
        @pytest.mark.mesh("dp=4")
        def test_one_differs(rank_context):
            meshsim.all_agree(2.0 if rank_context.rank == 2 else 1.0)

        @pytest.mark.mesh("dp=2,tp=2")
        def test_same_data(rank_context):
            meshsim.differs_along("dp", torch.full((2,), rank_context.rank // 3))

        @pytest.mark.mesh("dp=4")
        def test_caught_on_every_rank(rank_context):
            with pytest.raises(AssertionError, match="rank 0 has 5; ranks 1, 2, 3 have 6"):
                meshsim.all_agree(6 if rank_context.rank else 5)
            dist.barrier()
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(["*all_agree: rank 2 has 2.0; ranks 0, 1, 3 have 1.0*"])
    result.stdout.fnmatch_lines(["> *meshsim.all_agree(*"])
    result.stdout.fnmatch_lines(["*differs_along dp: ranks 0, 2 all have tensor([[]0, 0[]])*"])


def test_raises_on(run_suite, backend):
    result = run_suite(
        _HEAD
        + """
        def fail_on(rank_context, ranks, error=ValueError):
            if rank_context.rank in ranks:
                raise error("wrong shape")

        @pytest.mark.mesh("dp=4")
        def test_as_expected(rank_context):
            with meshsim.raises_on([1, 3], ValueError, match="shape") as raised:
                fail_on(rank_context, [1, 3])
            assert (raised.value is not None) == (rank_context.rank in (1, 3))
            with meshsim.raises_on(lambda rank: rank > 0, ValueError):
                fail_on(rank_context, [1, 2, 3])
            dist.barrier()

        @pytest.mark.mesh("dp=4")
        def test_not_on_all(rank_context):
            with meshsim.raises_on([1, 3], ValueError):
                fail_on(rank_context, [1])
            dist.barrier()

        @pytest.mark.mesh("dp=4")
        def test_too_many(rank_context):
            with meshsim.raises_on(1, ValueError):
                fail_on(rank_context, [0, 1])

        @pytest.mark.mesh("dp=4")
        def test_another_error(rank_context):
            with meshsim.raises_on(1, ValueError):
                fail_on(rank_context, [1], KeyError)
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["*raises_on: rank 3 did not raise ValueError*"])
    result.stdout.fnmatch_lines(["*raises_on: rank 0 raised ValueError, and should not*"])
    result.stdout.fnmatch_lines(["*raises_on: rank 1 raised KeyError: 'wrong shape' instead of ValueError*"])


def test_a_vote_to_skip(run_suite, backend):
    result = run_suite(
        _HEAD
        + """
        @pytest.mark.mesh("dp=4")
        def test_one_wants_to(rank_context):
            meshsim.vote_skip("too little memory", when=rank_context.rank == 2)
            raise AssertionError

        @pytest.mark.mesh("dp=4")
        def test_nobody_does(rank_context):
            meshsim.vote_skip("too little memory", when=False)
        """,
        f"--mesh-backend={backend}",
        "-rs",
    )
    result.assert_outcomes(skipped=1, passed=1)
    result.stdout.fnmatch_lines(["SKIPPED*: too little memory (on rank 2)"])
