"""Finding the broken one among many by asking about groups of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Unit = TypeVar("Unit", bound=Hashable)


def find_broken(units: Sequence[Unit], fails: Callable[[Sequence[Unit]], bool | None]) -> tuple[Unit, ...]:
    """The units without which the rest works, or the smallest group that still fails.

    ``fails`` runs something on a group of at least two units; it answers None when there is no time left.
    Halves are asked first. Where a half fails, the search goes on there; where both work on their own and
    fail only together, the culprits are a pair across the halves, found by halving each side in turn. Takes
    some 2 log2(n) questions for one broken unit. Empty when the whole works.
    """
    if len(units) < 2 or not fails(units):
        return ()
    group = list(units)
    while len(group) > 2:
        half = len(group) // 2
        left, right = group[:half], group[half:]
        for side in (left, right):
            if len(side) >= 2 and fails(side):
                group = side
                break
        else:
            group = _across(left, right, fails)
            break
    return _one_of(group, units, fails) if len(group) == 2 else tuple(group)


def _one_of(
    pair: Sequence[Unit], units: Sequence[Unit], fails: Callable[[Sequence[Unit]], bool | None]
) -> tuple[Unit, ...]:
    """Which of a failing pair it is: the one that fails with a third unit as well."""
    third = next((unit for unit in units if unit not in pair), None)
    if third is None:
        return tuple(pair)
    broken = tuple(unit for unit in pair if fails([unit, third]))
    return broken or tuple(pair)


def _across(
    left: list[Unit], right: list[Unit], fails: Callable[[Sequence[Unit]], bool | None]
) -> list[Unit]:
    """Both sides work, or are too small to ask, and fail together: narrow each side down as long as that
    stays so.
    """
    left = _narrow(left, right, fails)
    right = _narrow(right, left, fails)
    return [*left, *right]


def _narrow(
    side: list[Unit], other: list[Unit], fails: Callable[[Sequence[Unit]], bool | None]
) -> list[Unit]:
    while len(side) > 1:
        half = len(side) // 2
        first, second = side[:half], side[half:]
        if fails([*first, *other]):
            side = first
        elif fails([*second, *other]):
            side = second
        else:
            break
    return side
