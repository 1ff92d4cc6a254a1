"""Tables that hold each different value once, so that a page of many calls stays small."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any


class Interned:
    """Numbers for values, from 0, in the order in which they first came."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, value: Any = None) -> int:
        """The number of ``key``; ``value`` is what the table holds for it (the key itself without one)."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.values)
            self.values.append(key if value is None else value)
        return found


def packed_ranks(ranks: Sequence[int]) -> list[int] | dict[str, int]:
    """Ranks in even steps as ``{"first", "step", "count"}``, others as a list."""
    if len(ranks) > 3:
        step = ranks[1] - ranks[0]
        if step > 0 and tuple(ranks) == tuple(range(ranks[0], ranks[0] + step * len(ranks), step)):
            return {"first": ranks[0], "step": step, "count": len(ranks)}
    return list(ranks)
