"""Agree, then create: ranks compare what they are about to build, through the store, before the first
process group.

Each rank writes what it has under its own key and counts itself in; the last to come reads all and writes
the answer that the others wait for. That is a fixed number of store calls a rank.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import torch.distributed as dist

from meshlib.errors import PlanDisagreement
from meshlib.rank_text import subject_of_ranks
from meshlib.torch_private import default_group, default_store

_PATIENCE = timedelta(seconds=5)


class _Answer(TypedDict):
    text: str
    """What is wrong; empty when all agree."""
    readers: int
    """How many ranks will read that it is wrong."""


# By default process group, so that it ends with the world that it counts for. {topic: [epoch, rounds begun]}
_rounds: WeakKeyDictionary[dist.ProcessGroup, dict[str, list[int]]] = WeakKeyDictionary()


class Round:
    """One agreement among ``members`` (global ranks). Every member makes one for each mesh, in the same
    order.
    """

    def __init__(self, members: Sequence[int], topic: str, timeout: timedelta) -> None:
        self._store = default_store()
        self._members = members
        self._topic = f"meshlib/{topic}"
        self._timeout = timeout
        self.name = f"{self._topic}/{self._next()}"
        """Equal on all members, and different for each round on this store."""

    def _next(self) -> str:
        rounds = _rounds.setdefault(default_group(), {})
        counted = rounds.get(self._topic)
        if counted is None:
            # A store can outlive a world. Counting the world's ranks in tells its rounds from those of
            # earlier worlds.
            joined = self._store.add(f"{self._topic}/joined", 1)
            counted = rounds[self._topic] = [(joined - 1) // len(self._members), 0]
        counted[1] += 1
        return f"{counted[0]}.{counted[1]}"

    def agree(self, rank: int, facts: Mapping[str, Any]) -> None:
        """Return once all members have brought the same facts; ``PlanDisagreement`` on all of them
        otherwise.
        """
        answer = self._judge() if self._arrive(rank, {"has": facts}) else self._await()
        if answer["text"]:
            if self._store.add(f"{self.name}/read", 1) == answer["readers"]:
                self._store.set(f"{self.name}/all_read", "")
            else:
                self._wait_for_readers()
            raise PlanDisagreement(answer["text"])

    def refuse(self, rank: int, reason: str) -> None:
        """Tell the others that this rank won't build its mesh, and let those that come soon read it."""
        if self._arrive(rank, {"refuses": reason}):
            self._judge()
        # The others may never come, where only this rank tries: so this is no wait that could look like a
        # deadlock.
        pause, waited = 0.001, 0.0
        while waited < _PATIENCE.total_seconds() and not self._store.check([f"{self.name}/all_read"]):
            time.sleep(pause)
            waited += pause
            pause = min(2 * pause, 0.05)

    def _arrive(self, rank: int, entry: Mapping[str, Any]) -> bool:
        """Whether this rank is the last to come."""
        text = json.dumps({"round": self.name, **entry}, sort_keys=True)
        self._store.set(self._key(rank), text)
        return bool(self._store.add(f"{self.name}/arrived", 1) == len(self._members))

    def _key(self, rank: int) -> str:
        # The same key in every round: a rank comes again only when the round before has been judged.
        return f"{self._topic}/rank/{rank}"

    def _judge(self) -> _Answer:
        texts = self._store.multi_get([self._key(rank) for rank in self._members])
        if all(text == texts[0] for text in texts) and "has" in json.loads(texts[0]):
            return self._answer("", 0)
        entries = dict(zip(self._members, map(json.loads, texts), strict=True))
        readers = sum("has" in entry for entry in entries.values())
        if not readers:
            self._store.set(f"{self.name}/all_read", "")
        return self._answer(_disagreement(entries, self.name), readers)

    def _answer(self, text: str, readers: int) -> _Answer:
        """Write the answer, unless a rank that gave up has written one; what holds."""
        written = self._store.compare_set(
            f"{self.name}/answer", "", json.dumps({"text": text, "readers": readers})
        )
        answer: _Answer = json.loads(written)
        return answer

    def _await(self) -> _Answer:
        key = f"{self.name}/answer"
        try:
            self._store.wait([key], self._timeout)
        except dist.DistStoreError:
            came = [rank for rank in self._members if self._has_come(rank)]
            return self._answer(self._absence(came), len(came))
        answer: _Answer = json.loads(self._store.get(key))
        return answer

    def _wait_for_readers(self) -> None:
        """Let every rank read the answer first: this one may end next, and the store with it."""
        with suppress(dist.DistStoreError):
            self._store.wait([f"{self.name}/all_read"], min(self._timeout, _PATIENCE))

    def _absence(self, came: Sequence[int]) -> str:
        absent = sorted(set(self._members) - set(came))
        return (
            f"{subject_of_ranks(absent)} did not build the mesh within {self._timeout.total_seconds():g} s, "
            f"while {len(came)} of {len(self._members)} ranks waited: every rank of the mesh has to build it"
        )

    def _has_come(self, rank: int) -> bool:
        key = self._key(rank)
        return bool(self._store.check([key]) and json.loads(self._store.get(key))["round"] == self.name)


def _disagreement(entries: Mapping[int, Mapping[str, Any]], name: str) -> str:
    strays = [rank for rank, entry in entries.items() if entry["round"] != name]
    if strays:
        who = subject_of_ranks(strays)
        return f"{who} built another mesh meanwhile: all ranks must build their meshes in one order"
    refused = {rank: entry["refuses"] for rank, entry in entries.items() if "refuses" in entry}
    if refused:
        asked = {rank: _sizes_text(entry["has"]) for rank, entry in entries.items() if "has" in entry}
        parts = [f"{subject_of_ranks(ranks)}: {reason}" for reason, ranks in _by_value(refused)]
        parts += [f"{subject_of_ranks(ranks)} asked for {text}" for text, ranks in _by_value(asked)]
        count = f"{len(refused)} of {len(entries)} ranks refused theirs"
        return f"no mesh was built, because {count}; {'; '.join(parts)}"
    flat = {rank: _flattened(entry["has"]) for rank, entry in entries.items()}
    first = next(iter(flat.values()))
    keys = dict.fromkeys(key for facts in flat.values() for key in facts)
    differing = [key for key in keys if any(facts.get(key) != first.get(key) for facts in flat.values())]
    texts = {
        rank: ", ".join(f"{key}={facts[key]}" for key in differing if key in facts)
        for rank, facts in flat.items()
    }
    parts = [
        f"{subject_of_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {text}"
        for text, ranks in _by_value(texts)
    ]
    return f"ranks disagree about the mesh: {'; '.join(parts)}"


def _flattened(facts: Mapping[str, Any]) -> dict[str, Any]:
    """``{"sizes": {"dp": 4}, "order": [...]}`` as ``{"dp": 4, "order": [...]}``."""
    flat: dict[str, Any] = {}
    for key, value in facts.items():
        flat.update(value if key == "sizes" else {key: value})
    return flat


def _sizes_text(facts: Mapping[str, Any]) -> str:
    """``dp=2, tp=2``, or the shape of a mesh that has no sizes by name."""
    sizes = facts.get("sizes") or {"shape": facts.get("shape")}
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items() if size != 1) or "1 rank"


def _by_value(values: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    return list(found.items())
