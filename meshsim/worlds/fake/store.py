"""The key-value store of a fake world: c10d's interface, where waiting for a key lets other ranks run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from meshsim.source import user_line
from meshsim.torch_private import Store
from meshsim.trace import SourceLine
from meshsim.worlds.fake.scheduler import Scheduler


class FakeStore(Store):
    """Shared by all ranks of one run. Values are bytes; ``add`` keeps decimal text, as TCPStore does."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._data: dict[str, bytes] = {}
        self._queues: dict[str, list[bytes]] = {}
        self._waiting: dict[str, list[int]] = {}
        self.waits: dict[int, tuple[str, SourceLine | None]] = {}
        """The key that each blocked rank waits for, and where."""

    def set(self, key: str, value: Any) -> None:
        self._data[key] = _bytes(value)
        self._wake(key)

    def get(self, key: str) -> bytes:
        self._await(key)
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        total = int(self._data.get(key, b"0")) + amount
        self._data[key] = str(total).encode()
        self._wake(key)
        return total

    def append(self, key: str, value: Any) -> None:
        self._data[key] = self._data.get(key, b"") + _bytes(value)
        self._wake(key)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        before, after = _bytes(expected), _bytes(desired)
        if key not in self._data:
            if before:
                return before
            self._data[key] = after
            self._wake(key)
        elif self._data[key] == before:
            self._data[key] = after
        return self._data[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there. Polling lets other ranks go on."""
        rank = self._scheduler.rank_here()
        missing = [key for key in keys if key not in self._data]
        if missing and rank is not None:
            if self._scheduler.is_fruitless():
                self._await(missing[0])
            else:
                self._scheduler.pause(rank)
        return all(key in self._data for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self._await(key)

    def delete_key(self, key: str) -> bool:
        return self._data.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._data)

    def getNumKeys(self) -> int:
        return len(self._data)

    def deleteKey(self, key: str) -> bool:
        return self.delete_key(key)

    def compareSet(self, key: str, expected: Any, desired: Any) -> bytes:
        return self.compare_set(key, expected, desired)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def set_timeout(self, timeout: timedelta) -> None:
        """No wait here is timed: a key that can't come any more ends the run at once."""

    def has_extended_api(self) -> bool:
        return True

    def _await(self, key: str) -> None:
        rank = self._scheduler.rank_here()
        while key not in self._data:
            if rank is None:
                raise dist.DistStoreError(f"no such key in the store: {key}")
            self._waiting.setdefault(key, []).append(rank)
            self.waits[rank] = key, user_line(sys._getframe(1))
            self._scheduler.block(rank)
            self.waits.pop(rank, None)

    def _wake(self, key: str) -> None:
        self._scheduler.progressed()
        waiting = self._waiting.pop(key, None)
        if waiting:
            self._scheduler.wake(waiting)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return bytes(value)
