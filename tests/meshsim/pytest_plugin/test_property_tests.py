"""Hypothesis: strategies, and property tests on meshes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from meshlib import MeshPlan, ParallelDims
from meshsim import UsageError, run, strategies
from meshsim.faults import Fault


@given(text=strategies.topologies(max_world_size=12))
def test_topologies_are_valid_at_their_own_size(text):
    dims = ParallelDims.parse(text)
    size = dims.own_world_size()
    assert 1 <= size <= 12
    assert MeshPlan.build(dims, size).world_size == size


def test_topologies_shrink_to_the_smallest():
    found = find(
        strategies.topologies(max_world_size=16), lambda text: ParallelDims.parse(text).sizes()["tp"] == 2
    )
    assert found == "tp=2"


@given(text=strategies.topologies(max_world_size=8, min_world_size=4, axes={"tp": [1, 2], "pp": [1, 2, 4]}))
def test_topologies_of_chosen_axes(text):
    sizes = ParallelDims.parse(text).sizes()
    assert {axis for axis, size in sizes.items() if size not in (None, 1)} <= {"dp", "tp", "pp"}
    assert (sizes["tp"] or 1) <= 2


def test_axes_that_fit_nothing_are_refused():
    with pytest.raises(UsageError, match="fits 3 to 3 ranks"):
        strategies.topologies(min_world_size=3, max_world_size=3, axes={"tp": [2]})
    with pytest.raises(UsageError, match="not above"):
        strategies.topologies(min_world_size=3, max_world_size=2)


@given(data=st.data(), plan=strategies.plans(max_world_size=8))
def test_ranks_and_faults_fit_the_plan(data, plan):
    assert data.draw(strategies.ranks(plan)) in range(plan.world_size)
    text = data.draw(strategies.faults(plan))
    assert str(Fault.parse(text)) == text
    assert Fault.parse(text).address[0][1] in range(plan.world_size)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=strategies.collective_programs(max_world_size=6))
def test_collective_programs_give_what_they_expect(program):
    result = run(program, program.topology)
    assert result.ok, result
    assert result.returns == [program.expected(rank) for rank in range(result.world_size)]


def test_a_mesh_test_with_examples(run_suite, backend):
    result = run_suite(
        """
        import pytest, meshsim
        from hypothesis import given, settings
        from meshsim import strategies

        @pytest.mark.mesh("dp=2")
        @settings(max_examples=5)
        @given(n=strategies.ranks(1000))
        def test_all_ranks_draw_the_same(n, rank_context):
            meshsim.all_agree(n)

        class TestClass:
            @pytest.mark.mesh("dp=2")
            @pytest.mark.parametrize("limit", [10])
            @settings(max_examples=3)
            @given(n=strategies.ranks(10))
            def test_method(self, n, limit, rank_context):
                assert n < limit
        """,
        f"--mesh-backend={backend}",
    )
    result.assert_outcomes(passed=2)


def test_a_failure_shrinks_to_the_smallest_topology_and_is_replayed(run_suite, pytester):
    suite = """
        import pytest
        from hypothesis import given, settings
        from hypothesis.database import DirectoryBasedExampleDatabase
        from meshsim import strategies

        @pytest.mark.mesh
        @settings(database=DirectoryBasedExampleDatabase("examples"))
        @given(topology=strategies.topologies(max_world_size=8))
        def test_no_tensor_parallelism(topology, mesh_context):
            print("ran on", topology)
            assert mesh_context.tp_size < 2
    """
    first = run_suite(suite)
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["tp=2, 2 ranks on fake, seed 0: *raised AssertionError*"])
    first.stdout.fnmatch_lines(["*: test_no_tensor_parallelism(", "*topology='tp=2',"])
    assert (pytester.path / "examples").is_dir()
    second = run_suite(suite)
    second.assert_outcomes(failed=1)
    printed = [line for line in second.outlines if line.startswith("[rank0] ran on")]
    assert printed[0] == "[rank0] ran on tp=2"


def test_a_bare_marker_needs_a_drawn_topology(run_suite):
    result = run_suite(
        """
        import pytest
        from hypothesis import given, settings
        from hypothesis import strategies as st

        @pytest.mark.mesh
        @given(n=st.integers())
        def test_draws_no_topology(n):
            pass
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.mesh names no topology and the test draws none*"])


def test_a_warning_of_every_example_is_reported_once(run_suite):
    result = run_suite(
        """
        import warnings, pytest
        from hypothesis import given, settings
        from hypothesis import strategies as st

        @pytest.mark.mesh("dp=2")
        @settings(max_examples=4)
        @given(n=st.integers())
        def test_warns(n):
            warnings.warn("each time the same")
        """
    )
    result.assert_outcomes(passed=1, warnings=1)
