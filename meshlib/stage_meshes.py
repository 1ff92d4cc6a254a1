"""The meshes of a pipeline stage as grids, for live and offline contexts alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshlib.grid import Grid
from meshlib.plan import MeshPlan


@dataclass(frozen=True)
class StageMesh:
    """A view of one stage: its axes, its ranks on a grid, and where this rank stands."""

    axes: tuple[str, ...]
    grid: Grid
    coordinate: tuple[int, ...]


def expert_axes(plan: MeshPlan) -> tuple[str, ...]:
    """The axes of the expert mesh; ``edp_replicate`` is left out at size 1."""
    inner = ("edp_shard", "ep")
    return inner if plan.size("edp_replicate") == 1 else ("edp_replicate", *inner)


def stage_ranks(plan: MeshPlan, rank: int) -> Sequence[int]:
    """A stage's ranks, ascending; a range where they follow one another."""
    ranks = plan.group("stage", rank)
    return range(ranks[0], ranks[-1] + 1) if ranks[-1] - ranks[0] + 1 == len(ranks) else ranks


def stage_mesh(
    plan: MeshPlan, view: str, axes: tuple[str, ...], rank: int, stage: Sequence[int] | None = None
) -> StageMesh:
    """One view of ``rank``'s stage. Where the view is evenly spaced in the stage, its grid is the
    stage's ranks.
    """
    everywhere, inside = plan._view(view), plan._stage_view(view)
    places = [everywhere.axes.index(axis) for axis in axes]
    digits = everywhere.digits(rank)
    shape = tuple(everywhere.shape[place] for place in places)
    strides = tuple(inside.strides[place] for place in places)
    known = tuple(stride for stride in strides if stride is not None)
    if len(known) == len(strides):
        grid = Grid(stage_ranks(plan, rank) if stage is None else stage, shape, known)
    else:
        grid = Grid(everywhere.rows(places, rank), shape)
    return StageMesh(axes, grid, tuple(digits[place] for place in places))
