"""Covering selections: the fewest rows that contain every valid combination of ``strength`` values.

A greedy choice that prefers rare combinations (as AETG does, but over the whole list of valid rows, so that
no row has to be repaired), then a seeded search that takes out a third of the rows and fills the gaps again.
The same input gives the same rows on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

_SEARCH_WORK = 30_000_000
"""Cells and gains that the search may read; some tenths of a second."""
_SEARCH_ROUNDS = 600


class Covering:
    """The combinations that each of ``rows`` contains. ``rows`` are tuples of sizes, one column an axis.

    ``strength`` is the number of columns in a combination. ``each`` lists columns of which every value is to
    be there once, whatever the strength.
    """

    def __init__(self, rows: Sequence[Sequence[int]], strength: int, each: Sequence[int] = ()) -> None:
        table = np.asarray(rows, dtype=np.int64).reshape(len(rows), -1)
        free = [column for column in range(table.shape[1]) if column not in set(each)]
        sets = [list(columns) for columns in combinations(free, min(strength, len(free)))] + [
            [c] for c in each
        ]
        self._cells = np.empty((len(rows), len(sets)), dtype=np.int64)
        self._sizes: list[int] = []
        start = 0
        for place, columns in enumerate(sets):
            _, numbers = np.unique(table[:, columns], axis=0, return_inverse=True)
            self._cells[:, place] = numbers.reshape(-1) + start
            self._sizes.append(int(numbers.max()) + 1 if len(rows) else 0)
            start += self._sizes[-1]
        self.combinations = start
        """How many combinations there are to cover."""
        occurrences = np.bincount(self._cells.reshape(-1), minlength=start)
        self._weights = 1.0 / np.maximum(occurrences, 1)
        self._starts = np.concatenate(([0], np.cumsum(occurrences)))
        self._by_cell = np.argsort(self._cells, axis=None, kind="stable") // max(1, len(sets))

    @property
    def lower_bound(self) -> int:
        """No selection can have fewer rows: the most combinations that any one set of columns has."""
        return max(self._sizes, default=0)

    def select(self, seed: int = 0) -> list[int]:
        """Indices of the chosen rows, ascending; rows at the front of the list are preferred."""
        if not len(self._cells):
            return []
        best = self._without_spare(self._fill([]))
        current = best
        random = np.random.default_rng(seed)
        for _ in range(self._rounds(len(best))):
            if len(best) <= self.lower_bound:
                break
            kept = self._thinned(current, random)
            found = self._without_spare(self._fill(kept, random))
            if len(found) <= len(current):
                current = found
            if len(current) < len(best):
                best = current
        return self._shrunk(best)

    def _rounds(self, rows: int) -> int:
        work = max(1, self._cells.size + len(self._cells) * max(2, rows // 3))
        return min(_SEARCH_ROUNDS, _SEARCH_WORK // work)

    @staticmethod
    def _thinned(rows: list[int], random: np.random.Generator) -> list[int]:
        out = set(
            random.choice(len(rows), size=min(len(rows), max(2, len(rows) // 3)), replace=False).tolist()
        )
        return [row for place, row in enumerate(rows) if place not in out]

    def _fill(self, kept: list[int], random: np.random.Generator | None = None) -> list[int]:
        """Rows that cover everything, ``kept`` first. A combination leaves the gains when it is covered."""
        missing = np.ones(self.combinations, dtype=bool)
        missing[self._cells[kept]] = False
        gains: NDArray[np.float64] = (missing * self._weights)[self._cells].sum(axis=1)
        rows = list(kept)
        while missing.any():
            noise = 1.0 if random is None else 1.0 + 0.1 * random.random(len(gains))
            row = int((gains * noise).argmax())
            rows.append(row)
            for cell in self._cells[row][missing[self._cells[row]]]:
                gains[self._rows_with(cell)] -= self._weights[cell]
            missing[self._cells[row]] = False
        return rows

    def _rows_with(self, cell: int) -> NDArray[np.int64]:
        return self._by_cell[self._starts[cell] : self._starts[cell + 1]]

    def _shrunk(self, rows: list[int]) -> list[int]:
        """Each row, the last first, gives way to the first row that has all that only it contains."""
        times = np.bincount(self._cells[rows].reshape(-1), minlength=self.combinations)
        chosen = set(rows)
        for row in sorted(rows, reverse=True):
            cells = self._cells[row]
            times[cells] -= 1
            needed = times[cells] == 0
            fits = (self._cells[:row, needed] == cells[needed]).all(axis=1)
            first = next((int(place) for place in np.flatnonzero(fits) if int(place) not in chosen), row)
            chosen = (chosen - {row}) | {first}
            times[self._cells[first]] += 1
        return sorted(chosen)

    def _without_spare(self, rows: list[int]) -> list[int]:
        times = np.zeros(self.combinations, dtype=np.int64)
        for row in rows:
            times[self._cells[row]] += 1
        needed = []
        for row in rows:
            if (times[self._cells[row]] > 1).all():
                times[self._cells[row]] -= 1
            else:
                needed.append(row)
        return needed
