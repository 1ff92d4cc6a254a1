"""Views: factorisations of ranks into axes, as integer arithmetic.

A view turns a rank into its digits (one coordinate per axis) and back, in O(axes) and without listing other
ranks. Where the ranks along an axis are evenly spaced for every rank, ``strides`` holds the spacing, so
that groups are ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

from meshlib.axes import DENSE_AXES, EXPERT_AXES, FSDP_AXES

Digits = tuple[int, ...]


class View:
    """Axes and sizes of one factorisation. Subclasses give ``digits`` and ``rank_of``, inverse to each
    other.
    """

    def __init__(
        self, axes: tuple[str, ...], shape: tuple[int, ...], strides: tuple[int | None, ...]
    ) -> None:
        self.axes = axes
        self.shape = shape
        self.strides = tuple(1 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))

    def digits(self, rank: int) -> Digits:
        raise NotImplementedError

    def rank_of(self, digits: Digits) -> int:
        raise NotImplementedError

    def group(self, places: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Ascending ranks that differ from ``rank`` at most in the axes at ``places``."""
        digits = self.digits(rank)
        places = tuple(place for place in places if self.shape[place] > 1)
        if not places:
            return (rank,)
        strides = [self.strides[place] for place in places]
        if None not in strides:
            first = rank - sum(digits[place] * (self.strides[place] or 0) for place in places)
            return _spread(first, [(self.shape[place], self.strides[place] or 0) for place in places])
        return tuple(sorted(self.rows(places, rank)))

    def rows(self, places: Sequence[int], rank: int) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` at most at ``places``, row-major over these."""
        moved = list(self.digits(rank))
        ranks = []
        for combination in product(*(range(self.shape[place]) for place in places)):
            for place, digit in zip(places, combination, strict=True):
                moved[place] = digit
            ranks.append(self.rank_of(tuple(moved)))
        return tuple(ranks)

    def first(self, places: tuple[int, ...], rank: int) -> int:
        """The lowest rank of the group: every axis is ascending in rank."""
        digits = list(self.digits(rank))
        for place in places:
            digits[place] = 0
        return self.rank_of(tuple(digits))

    def last(self, places: tuple[int, ...], rank: int) -> int:
        """The highest rank of the group."""
        digits = list(self.digits(rank))
        for place in places:
            digits[place] = self.shape[place] - 1
        return self.rank_of(tuple(digits))


def _spread(first: int, parts: list[tuple[int, int]]) -> tuple[int, ...]:
    """Ascending sums of ``first`` and a multiple of each stride, for (size, stride) parts."""
    merged: list[tuple[int, int]] = []
    for size, stride in sorted(parts, key=lambda part: part[1]):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    ranks: tuple[int, ...] = (first,)
    for size, stride in merged:
        if len(ranks) == 1:
            ranks = tuple(range(first, first + size * stride, stride))
        else:
            # Strides ascend and each one passes the span before it, so blocks follow one another.
            ranks = tuple(rank + step for step in range(0, size * stride, stride) for rank in ranks)
    return ranks


class RowMajorView(View):
    """The whole world, outermost axis first."""

    def __init__(self, axes: tuple[str, ...], shape: tuple[int, ...]) -> None:
        strides = [1] * len(shape)
        for place in range(len(shape) - 1, 0, -1):
            strides[place - 1] = strides[place] * shape[place]
        super().__init__(axes, shape, tuple(strides))
        self._strides = tuple(strides)

    def digits(self, rank: int) -> Digits:
        return tuple(rank // stride % size for stride, size in zip(self._strides, self.shape, strict=True))

    def rank_of(self, digits: Digits) -> int:
        return sum(digit * stride for digit, stride in zip(digits, self._strides, strict=True))


class DenseView(View):
    """``(pp, dp, cp, tp)`` with the rank order of ``order``, outermost first."""

    def __init__(self, sizes: Mapping[str, int], order: tuple[str, ...]) -> None:
        strides: dict[str, int] = {}
        stride = 1
        for axis in reversed(order):
            strides[axis] = stride
            stride *= sizes[axis]
        self.order = order
        self.sizes = {axis: sizes[axis] for axis in DENSE_AXES}
        self.spacing = strides
        self._steps = tuple((strides[axis], sizes[axis]) for axis in DENSE_AXES)
        super().__init__(
            DENSE_AXES,
            tuple(sizes[axis] for axis in DENSE_AXES),
            tuple(strides[axis] for axis in DENSE_AXES),
        )

    def digits(self, rank: int) -> Digits:
        return tuple([rank // stride % size for stride, size in self._steps])

    def rank_of(self, digits: Digits) -> int:
        return sum([digit * step[0] for digit, step in zip(digits, self._steps, strict=True)])


class Stages:
    """A pipeline stage's ranks by their place in ascending order."""

    def __init__(self, dense: DenseView) -> None:
        self.stride = dense.spacing["pp"]
        self.count = dense.sizes["pp"]
        self.size = math.prod(dense.shape) // self.count

    def place(self, rank: int) -> tuple[int, int]:
        """``(stage, place in the stage)``."""
        above, below = divmod(rank, self.stride * self.count)
        return below // self.stride, above * self.stride + below % self.stride

    def rank_at(self, stage: int, place: int) -> int:
        above, below = divmod(place, self.stride)
        return (above * self.count + stage) * self.stride + below

    def spacing(self, stride: int, size: int) -> int | None:
        """Ranks between neighbours that are ``stride`` places apart, where that is even over ``size``
        places.
        """
        if size == 1:
            return 1
        if self.count == 1 or self.stride % (stride * size) == 0:
            return stride
        return stride * self.count if stride % self.stride == 0 else None


class Domain:
    """The dp x cp ranks that share a stage and a tp coordinate, by their place in ascending order."""

    def __init__(self, dense: DenseView) -> None:
        self.outer, self.inner = (axis for axis in dense.order if axis in ("dp", "cp"))
        self.outer_size, self.inner_size = dense.sizes[self.outer], dense.sizes[self.inner]
        self.outer_stride, self.inner_stride = dense.spacing[self.outer], dense.spacing[self.inner]
        self.size = self.outer_size * self.inner_size
        self._dp_is_outer = self.outer == "dp"

    def place(self, dp: int, cp: int) -> int:
        return dp * self.inner_size + cp if self._dp_is_outer else cp * self.inner_size + dp

    def dp_cp(self, place: int) -> tuple[int, int]:
        outer, inner = divmod(place, self.inner_size)
        return (outer, inner) if self._dp_is_outer else (inner, outer)

    def spacing(self, stride: int, size: int) -> int | None:
        """Ranks between neighbours that are ``stride`` places apart, where that is even over ``size``
        places.
        """
        if size == 1:
            return 1
        if self.outer_size == 1 or self.inner_size % (stride * size) == 0:
            return self.inner_stride * stride
        if stride % self.inner_size == 0:
            return self.outer_stride * (stride // self.inner_size)
        even = self.inner_size == 1 or self.inner_stride * self.inner_size == self.outer_stride
        return self.inner_stride * stride if even else None


class FsdpView(View):
    """``(pp, fsdp_replicate, fsdp_shard, tp)``: the domain factored row-major."""

    def __init__(self, dense: DenseView, replicate: int, shard: int) -> None:
        self._dense, self._domain, self._shard = dense, Domain(dense), shard
        super().__init__(
            FSDP_AXES,
            (dense.sizes["pp"], replicate, shard, dense.sizes["tp"]),
            (
                dense.spacing["pp"],
                self._domain.spacing(shard, replicate),
                self._domain.spacing(1, shard),
                dense.spacing["tp"],
            ),
        )

    def digits(self, rank: int) -> Digits:
        pp, dp, cp, tp = self._dense.digits(rank)
        replicate, shard = divmod(self._domain.place(dp, cp), self._shard)
        return pp, replicate, shard, tp

    def rank_of(self, digits: Digits) -> int:
        pp, replicate, shard, tp = digits
        dp, cp = self._domain.dp_cp(replicate * self._shard + shard)
        return self._dense.rank_of((pp, dp, cp, tp))


class StageExpertView(View):
    """``(pp, edp_replicate, edp_shard, ep)``: each stage's ranks in ascending order, factored row-major."""

    def __init__(self, dense: DenseView, shard: int, ep: int) -> None:
        self._stages, self._shard, self._ep = Stages(dense), shard, ep
        replicate = self._stages.size // (shard * ep)
        super().__init__(
            EXPERT_AXES,
            (self._stages.count, replicate, shard, ep),
            (
                self._stages.stride,
                self._stages.spacing(shard * ep, replicate),
                self._stages.spacing(ep, shard),
                self._stages.spacing(1, ep),
            ),
        )

    def digits(self, rank: int) -> Digits:
        pp, place = self._stages.place(rank)
        above, ep = divmod(place, self._ep)
        return (pp, *divmod(above, self._shard), ep)

    def rank_of(self, digits: Digits) -> int:
        pp, replicate, shard, ep = digits
        return self._stages.rank_at(pp, (replicate * self._shard + shard) * self._ep + ep)


class Replicas:
    """The ranks of a stage that share an fsdp_replicate coordinate, by their place in ascending order.

    A replica is a run of the domain, times tp. Where tp lies between dp and cp in rank order, the run's
    first and last row can be cut off, and the places are counted row by row.
    """

    def __init__(self, dense: DenseView, shard: int) -> None:
        self.domain, self.shard, self.tp = Domain(dense), shard, dense.sizes["tp"]
        inside = [axis for axis in dense.order if axis != "pp"]
        self._tp_at = inside.index("tp")

    def place(self, domain_place: int, tp: int) -> tuple[int, int]:
        """``(replica, place in the replica)``."""
        replica, run = divmod(domain_place, self.shard)
        if self._tp_at == 0:
            return replica, tp * self.shard + run
        if self._tp_at == 2:
            return replica, run * self.tp + tp
        row, column = divmod(domain_place, self.domain.inner_size)
        before, start, width = self._row(replica, row)
        return replica, self.tp * before + tp * width + column - start

    def at(self, replica: int, place: int) -> tuple[int, int]:
        """``(place in the domain, tp)``."""
        low = replica * self.shard
        if self._tp_at == 0:
            tp, run = divmod(place, self.shard)
            return low + run, tp
        if self._tp_at == 2:
            run, tp = divmod(place, self.tp)
            return low + run, tp
        first = low // self.domain.inner_size
        row, (_, _, width) = first, self._row(replica, first)
        if place >= self.tp * width:
            row = first + 1 + (place - self.tp * width) // (self.tp * self.domain.inner_size)
        before, start, width = self._row(replica, row)
        tp, column = divmod(place - self.tp * before, width)
        return row * self.domain.inner_size + start + column, tp

    def _row(self, replica: int, row: int) -> tuple[int, int, int]:
        """Of a replica's run in one row of the domain: places before the row, first column, number of
        columns.
        """
        low, begin = replica * self.shard, row * self.domain.inner_size
        start = max(low - begin, 0)
        end = min(low + self.shard - begin, self.domain.inner_size)
        return max(begin - low, 0), start, end - start


class ReplicaExpertView(View):
    """``(pp, edp_replicate, edp_shard, ep)``: each replica's ranks in ascending order, factored row-major."""

    def __init__(self, dense: DenseView, fsdp_shard: int, shard: int, ep: int) -> None:
        self._dense, self._replicas = dense, Replicas(dense, fsdp_shard)
        self._shard, self._ep = shard, ep
        replicate = self._replicas.domain.size // fsdp_shard
        super().__init__(
            EXPERT_AXES, (dense.sizes["pp"], replicate, shard, ep), (dense.spacing["pp"], None, None, None)
        )

    def digits(self, rank: int) -> Digits:
        pp, dp, cp, tp = self._dense.digits(rank)
        replica, place = self._replicas.place(self._replicas.domain.place(dp, cp), tp)
        return (pp, replica, *divmod(place, self._ep))

    def rank_of(self, digits: Digits) -> int:
        pp, replica, shard, ep = digits
        domain_place, tp = self._replicas.at(replica, shard * self._ep + ep)
        return self._dense.rank_of((pp, *self._replicas.domain.dp_cp(domain_place), tp))


def expert_view(dense: DenseView, *, fsdp_shard: int, shard: int, ep: int, ep_scope: str) -> View:
    """The expert view. Where each replica is a run of its stage's ranks, both scopes are the same
    arithmetic.
    """
    inside = [axis for axis in dense.order if axis != "pp"]
    if ep_scope == "stage" or dense.sizes["tp"] == 1 or inside[-1] == "tp":
        return StageExpertView(dense, shard, ep)
    return ReplicaExpertView(dense, fsdp_shard, shard, ep)
