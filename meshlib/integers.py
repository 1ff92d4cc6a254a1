"""Exact integers: reading them, and what divides what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from meshlib.errors import MeshError


def exact_int(value: Any) -> int | None:
    """``value`` as an int when it is a whole number's type (int, ``numpy.int64``); None for bool, float,
    text.
    """
    # numpy.bool_ has no __index__ that means a number, but older versions gave it one.
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def meant_size(value: Any) -> int:
    """The size to suggest in place of a wrong one: 2 for ``2.0`` and ``"2"``, 1 where nothing is near."""
    try:
        number = 0 if isinstance(value, bool) else int(float(value))
    except (TypeError, ValueError, OverflowError):
        number = 0
    return max(number, 1)


def checked_rank(rank: Any, world_size: int) -> int:
    """``rank`` as an int from 0 to ``world_size - 1``."""
    number = exact_int(rank)
    if number is None:
        raise MeshError(f"rank must be a whole number from 0 to {world_size - 1}, got {rank!r}")
    if not 0 <= number < world_size:
        raise MeshError(
            f"rank {number} is out of range: a world of {world_size} has ranks 0 to {world_size - 1}"
        )
    return number


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending. Empty for numbers below 1."""
    if number < 1:
        return ()
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    large = [number // d for d in reversed(small) if d * d != number]
    return tuple(small + large)


def nearest(values: Sequence[int], wanted: int) -> tuple[int, ...]:
    """The values next to ``wanted``: the largest below and the smallest above."""
    below = [v for v in values if v < wanted]
    above = [v for v in values if v > wanted]
    return tuple(below[-1:] + above[:1])


def product_text(names: Iterable[str], sizes: Iterable[int]) -> str:
    """``dp * cp = 8 (4 * 2)``; ``tp = 4`` for one."""
    names, sizes = tuple(names), tuple(sizes)
    text = f"{' * '.join(names)} = {math.prod(sizes)}"
    return text if len(names) == 1 else f"{text} ({' * '.join(map(str, sizes))})"


def remainder_text(number: int, by: int) -> str:
    """``8 % 3 = 2``."""
    return f"{number} % {by} = {number % by}"
