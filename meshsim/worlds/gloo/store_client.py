"""The rank's end of the run's store: c10d's interface, over the connection that a worker has to its parent.

torch's own ``TCPStore`` asks the name server who 127.0.0.1 is each time a client connects. Where the answer
is lost or late, each rank of each run would wait for seconds.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from meshsim.torch_private import Store
from meshsim.worlds.gloo.frames import BlockingChannel
from meshsim.worlds.gloo.messages import Meeting, StoreCall, StoreReply

WORLD_PREFIX = "default_pg/0"
"""Under which the default process group, and whoever asks it for its store, keeps keys."""


class StoreClient:
    """Calls the parent and waits for its reply. The control thread hands replies in."""

    def __init__(self, channel: BlockingChannel, run: int) -> None:
        self._channel = channel
        self._run = run
        self._numbers = itertools.count()
        self._awaited: dict[int, queue.SimpleQueue[StoreReply]] = {}
        self._calls: dict[int, StoreCall | Meeting] = {}

    def waiting(self) -> str | None:
        """What the rank's main thread waits for here, in words; None if it doesn't."""
        calls = list(self._calls.values())
        return f"waits for {_described(calls[-1])}" if calls else None

    def take(self, reply: StoreReply) -> None:
        """A reply has come; one that nobody waits for any more is dropped."""
        waiting = self._awaited.get(reply.number)
        if waiting is not None:
            waiting.put(reply)

    def call(self, operation: str, *arguments: Any, timeout: float | None = None) -> Any:
        """``operation`` of :class:`meshsim.worlds.gloo.run_store.RunStore`."""
        number = next(self._numbers)
        self._awaited[number] = queue.SimpleQueue()
        return self._ask(StoreCall(self._run, number, operation, arguments), timeout)

    def meet(self, key: tuple[Any, ...], size: int, member: int, value: bytes, timeout: float) -> list[bytes]:
        """Give ``value`` and get those of all ``size`` members, in their order, once all have come."""
        number = next(self._numbers)
        self._awaited[number] = queue.SimpleQueue()
        return list(self._ask(Meeting(self._run, number, key, size, member, value), timeout))

    def _ask(self, call: StoreCall | Meeting, timeout: float | None) -> Any:
        self._calls[call.number] = call
        try:
            self._channel.send(call)
            reply = self._awaited[call.number].get(timeout=timeout)
        except queue.Empty:
            raise dist.DistStoreError(f"wait timeout after {timeout:g} s for {_described(call)}") from None
        finally:
            del self._awaited[call.number]
            del self._calls[call.number]
        if reply.error:
            raise dist.DistStoreError(reply.error)
        return reply.value


def _described(call: StoreCall | Meeting) -> str:
    if isinstance(call, Meeting):
        return f"all {call.size} members to start the group of ranks {list(call.key[1])}"
    keys = call.arguments[0] if call.arguments else ""
    shown = [key.removeprefix(f"{WORLD_PREFIX}/") for key in ([keys] if isinstance(keys, str) else keys)]
    return f"the store's key {', '.join(shown)}"


class RankStore(Store):
    """The store that a run's ranks share, as c10d, DeviceMesh and scenarios use it. Values are bytes."""

    def __init__(self, client: StoreClient, timeout: timedelta) -> None:
        super().__init__()
        self._client = client
        self._seconds = timeout.total_seconds()

    def set(self, key: str, value: Any) -> None:
        self._client.call("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        return bytes(self._client.call("get", key, timeout=self._seconds))

    def add(self, key: str, amount: int) -> int:
        return int(self._client.call("add", key, amount))

    def append(self, key: str, value: Any) -> None:
        self._client.call("append", key, _bytes(value))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._client.call("check", list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        self._client.call("wait", list(keys), timeout=seconds)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return bytes(self._client.call("compare_set", key, _bytes(expected), _bytes(desired)))

    def delete_key(self, key: str) -> bool:
        return bool(self._client.call("delete_key", key))

    def num_keys(self) -> int:
        return int(self._client.call("num_keys"))

    def list_keys(self) -> list[str]:
        return list(self._client.call("list_keys"))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return list(self._client.call("multi_get", list(keys), timeout=self._seconds))

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        self._client.call("multi_set", list(keys), [_bytes(value) for value in values])

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._seconds)

    def has_extended_api(self) -> bool:
        return True

    # c10d's C++ code calls these three by other names.
    compareSet = compare_set
    deleteKey = delete_key
    getNumKeys = num_keys


class MeetingStore(Store):
    """Where the members of one gloo group exchange addresses: one message each, instead of one for each pair.

    gloo sets its own address under a key that ends in its rank, then waits for every other member's.
    """

    def __init__(
        self, client: StoreClient, key: tuple[Any, ...], size: int, member: int, timeout: timedelta
    ) -> None:
        super().__init__()
        self._client = client
        self._key = key
        self._size = size
        self._member = member
        self._timeout = timeout
        self._prefix = ""
        self._own = b""
        self._values: list[bytes] | None = None

    def set(self, key: str, value: Any) -> None:
        self._prefix, _, member = key.rpartition("/")
        if member != str(self._member) or self._values is not None:
            raise dist.DistStoreError(f"unexpected key {key!r} while starting group {self._key[0]!r}")
        self._own = _bytes(value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.get(key)

    def get(self, key: str) -> bytes:
        prefix, _, member = key.rpartition("/")
        if prefix != self._prefix or not member.isdecimal():
            raise dist.DistStoreError(f"unexpected key {key!r} while starting group {self._key[0]!r}")
        if self._values is None:
            seconds = self._timeout.total_seconds()
            self._values = self._client.meet(self._key, self._size, self._member, self._own, seconds)
        return self._values[int(member)]

    def has_extended_api(self) -> bool:
        return False


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
