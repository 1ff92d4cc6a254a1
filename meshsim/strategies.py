"""Hypothesis strategies for meshes and what runs on them. Needs the extra ``meshsim[hypothesis]``.

Everything shrinks towards few ranks, few axes and short programs::

    @given(topology=strategies.topologies(max_world_size=8))
    def test_any(topology):
        assert meshsim.run(scenario, topology).ok

In a mesh test the examples are drawn once, in pytest's process, and every rank gets the same. A test under a
bare ``@pytest.mark.mesh`` runs on the ``topology`` or ``plan`` that it draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from meshlib import MeshPlan, ParallelDims
from meshsim.errors import UsageError
from meshsim.faults import ACTIONS, Fault
from meshsim.scenarios.collective_program import OPS, REDUCE_OPS, CollectiveProgram, CollectiveStep
from meshsim.selection import all_topologies, parse_axes
from meshsim.topologies import build_plan

__all__ = ["collective_programs", "faults", "plans", "ranks", "topologies"]

_FAULT_OPS = ("*", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "send", "recv")


def topologies(
    *,
    max_world_size: int = 16,
    min_world_size: int = 1,
    axes: Iterable[str] | Mapping[str, Iterable[int]] | str | None = None,
) -> st.SearchStrategy[str]:
    """Topologies as text, such as ``dp=2,tp=2``; valid at the rank count that their sizes make.

    ``axes`` are the axes that may be above 1, with the values that they may have, as in ``meshsim.sweep``.
    """
    if not 1 <= min_world_size <= max_world_size:
        raise UsageError(
            f"topologies: min_world_size {min_world_size} and max_world_size {max_world_size} must be "
            "from 1 on, the first not above the second"
        )
    candidates = [
        (tuple(size or 1 for size in dims.sizes().values()), str(dims))
        for dims, size in all_topologies(range(min_world_size, max_world_size + 1), parse_axes(axes))
        if dims.own_world_size() == size
    ]
    if not candidates:
        raise UsageError(f"topologies: none of these axes fits {min_world_size} to {max_world_size} ranks")
    return _axis_by_axis(candidates)


@st.composite
def _axis_by_axis(draw: st.DrawFn, candidates: Sequence[tuple[tuple[int, ...], str]]) -> str:
    """One size after the other, always drawn from the same values, so that each shrinks by itself.

    A size that doesn't go with those before it gives way to the next smaller one that does.
    """
    left = list(candidates)
    for axis in range(len(left[0][0])):
        drawn = draw(st.sampled_from(sorted({sizes[axis] for sizes, _ in candidates})))
        possible = {sizes[axis] for sizes, _ in left}
        size = max((one for one in possible if one <= drawn), default=min(possible))
        left = [one for one in left if one[0][axis] == size]
    return left[0][1]


def plans(
    *,
    max_world_size: int = 16,
    min_world_size: int = 1,
    axes: Iterable[str] | Mapping[str, Iterable[int]] | str | None = None,
) -> st.SearchStrategy[MeshPlan]:
    """Plans of ``topologies`` with the same arguments."""
    return topologies(max_world_size=max_world_size, min_world_size=min_world_size, axes=axes).map(build_plan)


def ranks(of: int | str | ParallelDims | MeshPlan) -> st.SearchStrategy[int]:
    """Ranks of a world: of a plan, a topology, or a number of ranks."""
    return st.integers(0, _world_size(of) - 1)


@st.composite
def collective_programs(
    draw: st.DrawFn,
    topology: str | st.SearchStrategy[str] | None = None,
    *,
    max_world_size: int = 8,
    max_calls: int = 6,
    ops: Iterable[str] = OPS,
) -> CollectiveProgram:
    """Scenarios that are a sequence of collectives, right ones: every rank makes the same calls.

    ``program.topology`` is where it runs; called with a ``RankContext`` it returns the results of its calls,
    and ``program.expected(rank)`` says what they must be.
    """
    if topology is None:
        topology = topologies(max_world_size=max_world_size, axes=("dp", "cp", "tp"))
    text = topology if isinstance(topology, str) else draw(topology)
    known = [op for op in ops if op in OPS]
    if not known:
        raise UsageError(f"collective_programs: ops must be some of {', '.join(OPS)}")
    step = st.builds(
        CollectiveStep,
        op=st.sampled_from(known),
        axis=st.sampled_from(("world", "dp", "cp", "tp")),
        count=st.integers(1, 4),
        dtype=st.sampled_from(("float32", "int64", "float64", "bfloat16")),
        reduce_op=st.sampled_from(REDUCE_OPS),
        asynchronous=st.booleans(),
    )
    steps = draw(st.lists(step, min_size=1, max_size=max_calls))
    return CollectiveProgram(text, tuple(steps))


def faults(
    of: int | str | ParallelDims | MeshPlan, *, actions: Iterable[str] = ACTIONS
) -> st.SearchStrategy[str]:
    """Faults for ``meshsim.run(..., faults=[...])`` as text, such as ``rank=3:crash@all_reduce#2``."""
    chosen = list(actions)
    unknown = [action for action in chosen if action not in ACTIONS]
    if unknown or not chosen:
        raise UsageError(f"faults: actions must be some of {', '.join(ACTIONS)}; got {chosen!r}")

    def build(rank: int, action: str, op: str, count: int) -> str:
        seconds = 0.01 if action == "delay" else None
        return str(Fault((("rank", rank),), action, op, count, seconds))

    return st.builds(
        build,
        rank=ranks(of),
        action=st.sampled_from(chosen),
        op=st.sampled_from(_FAULT_OPS),
        count=st.integers(1, 3),
    )


def _world_size(of: Any) -> int:
    if isinstance(of, MeshPlan):
        return of.world_size
    if isinstance(of, int):
        return of
    return ParallelDims.of(of).own_world_size()
