"""The ranks of a mesh on a grid: what offline and live meshes have in common, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from meshlib.errors import NotInMesh
from meshlib.rank_text import rank_list_text


@dataclass(frozen=True)
class MeshAxis:
    """An axis of a mesh: one dimension of the grid, or several that were flattened, outermost first."""

    name: str
    dims: tuple[int, ...]


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a grid whose last dimension varies fastest."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 1, 0, -1):
        strides[dim - 1] = strides[dim] * shape[dim]
    return tuple(strides)


class Grid:
    """Ranks laid out on dimensions: the rank at a coordinate is ``ranks[sum(coordinate * strides)]``."""

    def __init__(
        self, ranks: Sequence[int], shape: tuple[int, ...], strides: tuple[int, ...] | None = None
    ) -> None:
        self.ranks = ranks if isinstance(ranks, range) else tuple(ranks)
        self.shape = shape
        self.strides = row_major(shape) if strides is None else strides
        self._places: dict[int, int] | None = None

    def __contains__(self, rank: object) -> bool:
        return self._place(rank) is not None

    def _place(self, rank: object) -> int | None:
        if isinstance(self.ranks, range):
            return self.ranks.index(rank) if isinstance(rank, int) and rank in self.ranks else None
        if self._places is None:
            self._places = {member: place for place, member in enumerate(self.ranks)}
        return self._places.get(rank)  # type: ignore[call-overload, no-any-return]

    def coordinate(self, rank: int) -> tuple[int, ...]:
        """The rank's coordinate; ``NotInMesh`` for a rank that the grid doesn't hold."""
        place = self._place(rank)
        if place is None:
            raise NotInMesh(f"rank {rank} isn't in the mesh of ranks {rank_list_text(self.ranks)}")
        return tuple([place // stride % size for stride, size in zip(self.strides, self.shape, strict=True)])

    def size(self, axis: MeshAxis) -> int:
        return math.prod(self.shape[dim] for dim in axis.dims)

    def local_rank(self, axis: MeshAxis, coordinate: Sequence[int]) -> int:
        """The place along an axis: row-major over its dimensions."""
        place = 0
        for dim in axis.dims:
            place = place * self.shape[dim] + coordinate[dim]
        return place

    def ranks_along(self, axes: Sequence[MeshAxis], coordinate: Sequence[int]) -> tuple[int, ...]:
        """The ranks that share ``coordinate`` outside of ``axes``, row-major over the axes."""
        dims = [dim for axis in axes for dim in axis.dims if self.shape[dim] > 1]
        places = [
            sum([coordinate[dim] * self.strides[dim] for dim in range(len(self.shape)) if dim not in dims])
        ]
        for dim in dims:
            steps = range(0, self.shape[dim] * self.strides[dim], self.strides[dim])
            places = [place + step for place in places for step in steps]
        ranks = self.ranks
        return tuple([ranks[place] for place in places])

    def first_coordinates(self, axes: Sequence[MeshAxis]) -> list[tuple[int, ...]]:
        """One coordinate a group: 0 along ``axes``, everything elsewhere, by rank."""
        fixed = {dim for axis in axes for dim in axis.dims}
        spans = [range(1) if dim in fixed else range(size) for dim, size in enumerate(self.shape)]
        return list(product(*spans))
