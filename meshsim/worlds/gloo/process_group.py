"""The rank's process groups: recorded, carried by torch's own gloo groups, connected until all ranks end."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshsim import torch_private
from meshsim.torch_private import PrefixStore, Store
from meshsim.worlds.calls import Call
from meshsim.worlds.gloo.environment import LOOPBACK
from meshsim.worlds.gloo.messages import RunOrder
from meshsim.worlds.gloo.store_client import WORLD_PREFIX, MeetingStore, RankStore, StoreClient
from meshsim.worlds.recorder import Recorder
from meshsim.worlds.recording import RecordingGroup
from meshsim.worlds.rendezvous import Rendezvous
from meshsim.worlds.transport import Transport
from meshsim.worlds.works import FinishedWork

_DEFAULT_GROUP = "0"
# c10d's own; the run's deadline is what ends a run.
_TIMEOUT = timedelta(minutes=30)


class GlooTransport:
    """Hands a rank's calls on one group to torch's own gloo group."""

    def __init__(self, group: Any, backend: Any) -> None:
        self._group = group
        self._backend = backend

    def start(self, call: Call) -> dist.Work:
        work: dist.Work | None = getattr(self._group, call.method)(*call.arguments)
        # monitored_barrier waits by itself.
        return FinishedWork() if work is None else work

    def backend_for(self, device: torch.device) -> Any:
        return self._backend

    def close(self) -> None:
        """Nothing yet: a connection closed by one rank would be an error in the ranks that still use it."""

    def let_go(self) -> tuple[dist.ProcessGroup, Any]:
        """Give the connections away, once all ranks have ended."""
        held = self._group, self._backend
        self._group = self._backend = None
        return held


class GlooGroups:
    """All groups that a rank made in a run."""

    def __init__(self, order: RunOrder, recorder: Recorder, client: StoreClient) -> None:
        self.world: dist.ProcessGroup | None = None
        self._order = order
        self._recorder = recorder
        self._client = client
        self._started: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._made: list[GlooTransport] = []
        self._stores: list[Store] = []
        self._store = self._kept(RankStore(client, _TIMEOUT))
        self.rendezvous = Rendezvous(lambda: order.rank, self._store, self._another_default_group)
        """For ``init_process_group`` in a scenario that has destroyed the default group."""

    def join_world(self) -> None:
        """Meet the other ranks at the run's store and start the default process group."""
        order = self._order
        store = PrefixStore(WORLD_PREFIX, self._store)
        members = tuple(range(order.world_size))
        self.world = RecordingGroup(
            store,
            order.rank,
            members=members,
            name=_DEFAULT_GROUP,
            timeout=_TIMEOUT,
            recorder=self._recorder,
            factory=self._make,
        )
        torch_private.install_default_group(
            self.world, store, _DEFAULT_GROUP, ranks={rank: rank for rank in members}
        )

    def _another_default_group(
        self,
        rank: int,
        group_rank: int,
        members: tuple[int, ...],
        times: int,
        store: Store,
        timeout: timedelta,
    ) -> RecordingGroup:
        return RecordingGroup(
            store,
            group_rank,
            members=members,
            name=_DEFAULT_GROUP,
            timeout=timeout,
            recorder=self._recorder,
            factory=self._make,
            era=f"{times}:",
        )

    def _make(
        self, members: tuple[int, ...], name: str, group_rank: int, store: Store, timeout: timedelta
    ) -> Transport:
        self._started[name, members] += 1
        key = (name, members, self._started[name, members])
        meeting = self._kept(MeetingStore(self._client, key, len(members), group_rank, timeout))
        group, backend = torch_private.start_gloo_group(
            meeting, group_rank, members=members, name=name, timeout=timeout, host=LOOPBACK
        )
        transport = GlooTransport(group, backend)
        self._made.append(transport)
        return transport

    def _kept(self, store: Store) -> Store:
        # c10d holds the C++ half only; without its Python half a store answers nothing.
        self._stores.append(store)
        return store

    def close(self) -> None:
        """Take the groups out of c10d and let go of them. A default group that is gone is left alone."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self.world = None
        held = [transport.let_go() for transport in self._made]
        # Ending a connection waits for gloo's loop, 10 ms each: the next run need not wait for that.
        thread = threading.Thread(target=_let_go, args=(held,), name=RELEASER, daemon=True)
        thread.start()


RELEASER = "meshsim-release"


def _let_go(held: list[tuple[dist.ProcessGroup, Any]]) -> None:
    # Backends last: their destructor runs without the interpreter's lock, that of a group doesn't.
    backends = [backend for _, backend in held]
    held.clear()
    while backends:
        backends.pop()
