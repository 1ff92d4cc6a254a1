"""``meshsim.sweep``: which topologies are run, and what is said of all of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import meshlib
import meshsim
from meshlib import ParallelDims, TopologyError
from meshsim import RunFailed, UsageError


def passes(rank: Any) -> Any:
    return rank


def test_every_topology_of_every_rank_count_is_run(world: Any) -> None:
    swept = meshsim.sweep(passes, world_sizes=range(1, 5), backend=world)
    wanted = {(str(dims), size) for size in range(1, 5) for dims in meshlib.topologies(size)}
    assert {(result.topology, result.world_size) for result in swept} == wanted
    assert len(swept) == len(wanted)
    assert swept.ok


def test_smallest_worlds_come_first(world: Any) -> None:
    sizes = [result.world_size for result in meshsim.sweep(passes, world_sizes=[4, 2, 3], backend=world)]
    assert sizes == sorted(sizes)
    assert set(sizes) == {2, 3, 4}


def test_topologies_are_run_as_they_are_given(world: Any) -> None:
    swept = meshsim.sweep(passes, topologies=["tp=2", ParallelDims(pp_size=3)], backend=world)
    assert [(result.topology, result.world_size) for result in swept] == [("tp=2", 2), ("pp=3", 3)]


def test_topologies_with_world_sizes_are_run_at_each(world: Any) -> None:
    swept = meshsim.sweep(passes, topologies=["tp=2"], world_sizes=[2, 4], backend=world)
    assert [(result.topology, result.world_size) for result in swept] == [("tp=2", 2), ("tp=2", 4)]


def test_a_topology_that_does_not_fit_is_refused_before_anything_runs(world: Any) -> None:
    with pytest.raises(TopologyError, match="tp"):
        meshsim.sweep(passes, topologies=["tp=2"], world_sizes=[2, 3], backend=world)
    assert not world.requests


def test_axes_limit_what_is_split(world: Any) -> None:
    swept = meshsim.sweep(passes, world_sizes=[4], axes={"tp": [1, 2]}, backend=world)
    assert [result.topology for result in swept] == ["dp=4", "dp=2,tp=2"]


def test_a_cover_has_every_pair_of_sizes_and_every_rank_count(world: Any) -> None:
    everything = meshsim.sweep(passes, world_sizes=range(1, 9), axes="dp,tp,pp", backend=world)
    chosen = meshsim.sweep(passes, world_sizes=range(1, 9), axes="dp,tp,pp", cover=2, backend=world)

    def pairs(swept: meshsim.SweepResult) -> set[tuple[int, int, int, int]]:
        sizes = [(r.plan.size("dp"), r.plan.size("tp"), r.plan.size("pp")) for r in swept]
        return {(i, j, row[i], row[j]) for row in sizes for i in range(3) for j in range(i)}

    assert pairs(chosen) == pairs(everything)
    assert {result.world_size for result in chosen} == set(range(1, 9))
    assert len(chosen) < len(everything)


def test_each_takes_the_topology_that_splits_most_axes(world: Any) -> None:
    swept = meshsim.sweep(passes, world_sizes=[1, 6, 8], axes="dp,tp,pp", cover="each", backend=world)
    assert Counter(result.world_size for result in swept) == {1: 1, 6: 1, 8: 1}
    split = [sum(r.plan.size(axis) > 1 for axis in ("dp", "tp", "pp")) for r in swept]
    assert split == [0, 2, 3]


def test_each_prefers_what_the_scenario_supports(world: Any) -> None:
    def scenario(rank: Any) -> None: ...

    scenario.unsupported = lambda plan: "no tp" if plan.size("tp") > 1 else None  # type: ignore[attr-defined]
    swept = meshsim.sweep(scenario, world_sizes=[4, 8], axes="dp,tp,pp", cover="each", backend=world)
    assert all(result.ok for result in swept)
    assert [sum(r.plan.size(axis) > 1 for axis in ("dp", "tp", "pp")) for r in swept] == [2, 2]
    alone = meshsim.sweep(scenario, world_sizes=[2], axes={"tp": [2]}, cover="each", backend=world)
    assert [result.verdict.summary for result in alone] == ["no tp"]


def test_one_failed_run_fails_the_sweep(world: Any) -> None:
    def fails_with_four(rank: Any) -> None:
        if rank == 3:
            raise ValueError("four are too many")

    swept = meshsim.sweep(fails_with_four, topologies=["tp=2", "tp=4"], backend=world)
    assert not swept.ok
    assert [result.topology for result in swept.failed] == ["tp=4"]
    assert "1 failed" in str(swept)
    with pytest.raises(RunFailed, match="four are too many"):
        meshsim.sweep(fails_with_four, topologies=["tp=4"], backend=world, raises=True)


def test_what_is_not_run_is_shown_with_its_reason(world: Any) -> None:
    def scenario(rank: Any) -> None: ...

    scenario.unsupported = lambda plan: "pp isn't covered yet" if plan.size("pp") > 1 else None  # type: ignore[attr-defined]
    swept = meshsim.sweep(scenario, topologies=["tp=2", "pp=2"], backend=world)
    assert swept.ok
    assert [result.topology for result in swept.not_run] == ["pp=2"]
    assert "not run: pp isn't covered yet" in swept.table()
    assert swept.table().splitlines()[-1] == "2 runs: 1 passed, 1 not run"
    nothing_ran = meshsim.sweep(scenario, topologies=["pp=2"], backend=world)
    assert not nothing_ran.ok
    assert not nothing_ran.failed


def test_the_table_has_a_line_for_each_run(world: Any) -> None:
    lines = meshsim.sweep(passes, topologies=["tp=2", "dp=12"], backend=world).table().splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["ranks", "topology", "backend", "verdict", "seconds"],
        ["2", "tp=2", "calling", "passed", "1.25"],
        ["12", "dp=12", "calling", "passed", "1.25"],
    ]


def test_a_sweep_is_a_sequence(world: Any) -> None:
    swept = meshsim.sweep(passes, topologies=["tp=2", "tp=3"], backend=world)
    assert swept[0].topology == "tp=2"
    assert [result.topology for result in swept[1:]] == ["tp=3"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, "give topologies.* or world_sizes"),
        ({"world_sizes": []}, "world_sizes is empty"),
        ({"world_sizes": [0]}, "world_size .* 0"),
        ({"world_sizes": "4-2"}, "world sizes '4-2'"),
        ({"topologies": []}, "topologies is empty"),
        ({"world_sizes": [2], "cover": 0}, "cover must be"),
        ({"world_sizes": [2], "cover": "some"}, "cover must be"),
        ({"topologies": ["tp=2"], "cover": 2}, "leave out topologies"),
        ({"topologies": ["tp=2"], "axes": "tp"}, "leave out topologies"),
        ({"world_sizes": [2], "axes": "xp"}, "axis 'xp' is unknown"),
    ],
)
def test_wrong_use_is_refused(world: Any, options: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        meshsim.sweep(passes, backend=world, **options)
