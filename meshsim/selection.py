"""Which topologies a sweep or a matrix runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any

import meshlib
from meshlib import ParallelDims, TopologyError
from meshsim.errors import UsageError
from meshsim.matrix.covering import Covering
from meshsim.topologies import check_world_sizes, default_world_size, parse_dims

Chosen = tuple[ParallelDims, int]
"""A topology and its rank count."""

Supports = Callable[[Chosen], bool]
"""Whether the scenario can be run on a topology."""

AxisValues = dict[str, tuple[int, ...] | None]
"""The axes to split, each with the sizes it may have; None: every divisor of the world size."""

AXES = tuple(ParallelDims().sizes())
DEFAULT_AXES: AxisValues = dict.fromkeys(("dp", "dp_replicate", "cp", "tp", "pp", "ep"))


def choose(
    *,
    world_sizes: Iterable[int] | int | str | None = None,
    topologies: Iterable[str | ParallelDims] | None = None,
    axes: Any = None,
    cover: int | str | None = None,
    ep_scope: str = "stage",
    supports: Supports | None = None,
    job_size: int | None = None,
) -> list[Chosen]:
    """The topologies given, or all (or a covering selection) of those of ``world_sizes``, smallest first.

    Every one is checked: a topology that doesn't fit its rank count is a ``meshlib.TopologyError``.
    ``cover="each"`` prefers topologies that the scenario ``supports``. In a job of ``job_size`` ranks an
    unset dp follows from these.
    """
    given = None if topologies is None else _listed(topologies)
    if given is None and world_sizes is None:
        raise UsageError("give topologies, such as 'dp=2,tp=2', or world_sizes, such as range(1, 9)")
    sizes = None if world_sizes is None else check_world_sizes(world_sizes)
    if given is not None:
        if axes is not None or cover not in (None, "all"):
            raise UsageError(
                "axes and cover choose among the topologies of world_sizes; leave out topologies"
            )
        return _fitting(given, sizes, ep_scope, job_size)
    candidates = all_topologies(sizes or (), parse_axes(axes), ep_scope)
    if cover == "each":
        return one_of_each_size(candidates, ep_scope, supports)
    return covering(candidates, cover, ep_scope)


def _listed(topologies: Any) -> list[str | ParallelDims]:
    listed = [topologies] if isinstance(topologies, str | ParallelDims) else list(topologies)
    if not listed:
        raise UsageError("topologies is empty; give at least one, such as 'dp=2,tp=2'")
    return listed


def _fitting(
    topologies: Sequence[str | ParallelDims],
    sizes: Sequence[int] | None,
    ep_scope: str,
    job_size: int | None,
) -> list[Chosen]:
    chosen = []
    for topology in topologies:
        dims = parse_dims(topology)
        for size in sizes or (default_world_size(dims, job_size),):
            dims.resolve(size, ep_scope=ep_scope)
            chosen.append((dims, size))
    return chosen


def all_topologies(
    sizes: Iterable[int], axes: AxisValues | None = None, ep_scope: str = "stage"
) -> list[Chosen]:
    """Every valid topology of every rank count, smallest first.

    Each of ``axes`` takes its values. The others are 1, but for those that follow: an unnamed dp from the
    world size, and of dp_replicate and dp_shard the one that isn't named from the other.
    """
    axes = DEFAULT_AXES if axes is None else axes
    free = {"dp", *axes}
    possible = _possible_sizes(axes)
    found = []
    for size in sizes:
        if possible is not None and size not in possible:
            continue
        for dims in meshlib.topologies(size, free):
            values = _sizes_if_valid(dims, size, ep_scope)
            if values is not None and all(_allowed(values[axis], axes[axis]) for axis in axes):
                found.append((dims, size))
    return found


def _possible_sizes(axes: AxisValues) -> set[int] | None:
    """The rank counts that the values can make; None where they leave that open."""
    pairs = (("dp_replicate", "dp_shard"), ("dp", "cp"))
    domain = next((pair for pair in pairs if all(axes.get(axis) for axis in pair)), None)
    if domain is None:
        return None
    products = {1}
    for axis in (*domain, "tp", "pp"):
        values = axes.get(axis, (1,))
        if values is None:
            return None
        products = {product * value for product in products for value in values}
    return products


def _allowed(value: int, values: tuple[int, ...] | None) -> bool:
    return values is None or value in values


def _sizes_if_valid(dims: ParallelDims, world_size: int, ep_scope: str) -> dict[str, int] | None:
    """The sizes of one of meshlib's canonical topologies, in which only dp_shard is to be filled in.

    Resolving each would take most of the time that a matrix takes.
    """
    if ep_scope != "stage":
        try:
            return sizes_of(dims, world_size, ep_scope)
        except TopologyError:
            return None  # meshlib.topologies lists what fits the stage; fewer fit one replica
    values = {axis: size or 1 for axis, size in dims.sizes().items()}
    values["dp_shard"] = values["dp"] * values["cp"] // values["dp_replicate"]
    return values


def covering(candidates: Sequence[Chosen], cover: int | str | None, ep_scope: str = "stage") -> list[Chosen]:
    """All of ``candidates``, or a selection with every combination of ``cover`` sizes and rank count."""
    if cover is None or cover == "all":
        return list(candidates)
    if isinstance(cover, bool) or not isinstance(cover, int) or cover < 1:
        raise UsageError(f"cover must be 'all', 'each' or a whole number of at least 1, got {cover!r}")
    rows = [(size, *sizes_of(dims, size, ep_scope).values()) for dims, size in candidates]
    return [candidates[place] for place in Covering(rows, cover, each=(0,)).select()]


def sizes_of(dims: ParallelDims, world_size: int, ep_scope: str = "stage") -> dict[str, int]:
    """All sizes by axis, filled in."""
    resolved = dims.resolve(world_size, ep_scope=ep_scope)
    return {axis: size or 1 for axis, size in resolved.sizes().items()}


def one_of_each_size(
    candidates: Sequence[Chosen], ep_scope: str = "stage", supports: Supports | None = None
) -> list[Chosen]:
    """For each rank count the topology that splits most axes; among those the one with the rarest axes.

    Where the scenario supports none of a rank count, one stays in, to be reported as not run.
    """
    times_split: Counter[str] = Counter()
    chosen = []

    def worth(pair: tuple[Chosen, list[str]]) -> tuple[bool, int, int]:
        candidate, split = pair
        supported = supports is None or supports(candidate)
        return supported, len(split), -sum(times_split[axis] for axis in split)

    for size in sorted({size for _, size in candidates}):
        of_size = [(one, _split_axes(one, ep_scope)) for one in candidates if one[1] == size]
        candidate, split = max(of_size, key=worth)
        times_split.update(split)
        chosen.append(candidate)
    return chosen


def _split_axes(candidate: Chosen, ep_scope: str) -> list[str]:
    """The axes above size 1; dp is what dp_replicate, dp_shard and cp make of it, and doesn't count."""
    return [axis for axis, size in sizes_of(*candidate, ep_scope).items() if size > 1 and axis != "dp"]


def parse_axes(axes: Any) -> AxisValues:
    """Axes from a mapping, names, or text such as ``dp,tp`` or ``dp=1,2,4 tp``; no values: all divisors."""
    if axes is None:
        return dict(DEFAULT_AXES)
    if isinstance(axes, Mapping):
        found = {_axis(name): _values(name, values) for name, values in axes.items()}
    elif isinstance(axes, str):
        found = _axes_of_text(axes)
    else:
        found = {}
        for text in axes:
            found.update(_axes_of_text(text))
    if not found:
        raise UsageError(f"axes are empty; known are {', '.join(AXES)}")
    return found


def _axes_of_text(text: str) -> AxisValues:
    found: dict[str, list[int]] = {}
    last = ""
    for word in re.split(r"[\s,;]+", text.strip(" ,;")):
        name, equals, value = word.rpartition("=") if "=" in word else (word, "", "")
        if not equals and re.fullmatch(r"[\d|:/-]+", word):
            name, value = last, word
        if name != last:
            last = _axis(name)
            if last in found:
                raise UsageError(f"axes {text!r} name {last} twice")
            found[last] = []
        found[last].extend(_numbers(last, value))
    return {name: tuple(values) or None for name, values in found.items()}


def _numbers(axis: str, text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, re.split(r"[|:/]", text)):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if first < 1 or last < first:
            raise UsageError(
                f"{axis}={text} can't be read; sizes are whole numbers from 1 on, such as {axis}=1,2,4"
            )
        numbers.extend(range(first, last + 1))
    return numbers


def _axis(name: Any) -> str:
    if name not in AXES:
        raise UsageError(f"axis {name!r} is unknown; known are {', '.join(AXES)}")
    return str(name)


def _values(axis: str, values: Any) -> tuple[int, ...] | None:
    if values is None:
        return None
    if isinstance(values, str):
        return tuple(_numbers(axis, values.replace(",", "|"))) or None
    try:
        found = tuple(index(value) for value in values)
    except TypeError:
        found = (0,)
    if any(value < 1 for value in found):
        raise UsageError(f"{axis}: {values!r} must be whole numbers of at least 1, such as [1, 2, 4]")
    return found or None


def covering_matrix(
    sizes: Sequence[int],
    axes: AxisValues,
    strength: int | None = None,
    *,
    every_size: bool = False,
    ep_scope: str = "stage",
) -> list[Chosen]:
    """The fewest topologies found that contain every valid combination of ``strength`` sizes of ``axes``.

    Without ``strength`` it is 2, or 1 for a single axis. With ``every_size`` every rank count that has a
    valid topology is there as well. Smallest first.
    """
    if strength is None:
        strength = min(2, len(axes))
    if isinstance(strength, bool) or not 1 <= strength <= len(axes):
        raise UsageError(f"strength must be from 1 to {len(axes)}, the number of axes; got {strength!r}")
    candidates = all_topologies(sizes, axes, ep_scope)
    if not candidates:
        raise UsageError(
            "no topology of these axes fits any of these world sizes; give other sizes or axis values"
        )
    rows = []
    for dims, size in candidates:
        values = sizes_of(dims, size, ep_scope)
        rows.append((size, *(values[axis] for axis in axes)))
    covering = (
        Covering(rows, strength, each=(0,)) if every_size else Covering([row[1:] for row in rows], strength)
    )
    return [candidates[place] for place in covering.select()]
