"""Robust statistics: who is far from the others, however bad the outliers are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

_SIGMA = 1.4826
"""The median of absolute deviations times this is the standard deviation of normal data."""
DEVIATIONS = 6.0
RATIO = 1.5


def spread(values: Sequence[float]) -> float:
    """A standard deviation that up to half of the values can't spoil."""
    middle = median(values)
    return _SIGMA * median(abs(value - middle) for value in values)


def slow(seconds: Mapping[Key, float], *, ratio: float = RATIO) -> dict[Key, float]:
    """Those that take much longer than the median: by ``ratio``, and by six robust standard deviations.

    Gives each with how many times the median it takes. Fewer than three have no majority to compare with.
    """
    if len(seconds) < 3:
        return {}
    values = list(seconds.values())
    middle = median(values)
    limit = max(middle * ratio, middle + DEVIATIONS * spread(values))
    return {key: value / middle for key, value in seconds.items() if value > limit and middle > 0}


def slow_places(seconds: Mapping[tuple[Key, Key], float], *, ratio: float = RATIO) -> dict[Key, float]:
    """The places whose links are slow, by the times of pairs: those whose median over all partners is.

    A place that is slow spoils one link of every other place, and all of its own.
    """
    of_place: dict[Key, list[float]] = {}
    for pair, value in seconds.items():
        for place in pair:
            of_place.setdefault(place, []).append(value)
    if len(of_place) < 3:
        return {}
    middle = median(seconds.values())
    medians = {place: median(values) for place, values in of_place.items()}
    best = min(medians.values())
    reference = min(middle, median(medians.values())) if len(of_place) > 3 else best
    return {
        place: value / reference
        for place, value in medians.items()
        if reference > 0 and value > ratio * reference and min(of_place[place]) > ratio * best / 2
    }


def slow_pairs(
    seconds: Mapping[tuple[Key, Key], float], *, ratio: float = RATIO
) -> dict[tuple[Key, Key], float]:
    """Single links that are slow although both of their places aren't."""
    suspects = set(slow_places(seconds, ratio=ratio))
    rest = {pair: value for pair, value in seconds.items() if not suspects & set(pair)}
    return slow(rest, ratio=ratio)
