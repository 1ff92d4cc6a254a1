"""Default process groups that a scenario starts itself, and the stores that it would find others by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from meshsim import torch_private
from meshsim.torch_private import PrefixStore, Store

MakeGroup = Callable[[int, int, tuple[int, ...], int, Store, timedelta], dist.ProcessGroup]
"""From rank here, rank in the group, members, how often this rank has done so before, store and timeout."""


class Rendezvous:
    """One run's. ``init_process_group`` works with ``env://``, ``tcp://``, ``file://`` and ``store=``.

    The places that these name are prefixes of the run's own store: nothing is opened, and nobody waits for a
    socket. Ranks that name one place meet there, each under the rank that it claims.
    """

    def __init__(self, rank_here: Callable[[], int | None], store: Store, make_group: MakeGroup) -> None:
        self._rank_here = rank_here
        self._store = store
        self._make_group = make_group
        self._started: dict[int, int] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        with (
            torch_private.stores_made_by(self._tcp_class(), self._file_class()),
            torch_private.default_groups_made_by(self._default_group),
        ):
            yield

    def _tcp_class(self) -> Callable[..., Store]:
        run_store = self._store

        class TCPStore(PrefixStore):
            def __init__(
                self,
                host_name: str,
                port: int,
                world_size: int | None = None,
                is_master: bool = False,
                *others: Any,
                **options: Any,
            ) -> None:
                super().__init__(f"tcp://{host_name}:{port}", run_store)
                self.host, self.port = host_name, port

        return TCPStore

    def _file_class(self) -> Callable[..., Store]:
        run_store = self._store

        class FileStore(PrefixStore):
            def __init__(self, file_name: str, world_size: int = -1) -> None:
                super().__init__(f"file://{file_name}", run_store)
                self.path = file_name

        return FileStore

    def _default_group(
        self, group_rank: int, group_size: int, store: Store, timeout: timedelta
    ) -> dist.ProcessGroup:
        here = self._rank_here()
        if here is None:
            raise RuntimeError("init_process_group in a thread that isn't a rank's own")
        times = self._started[here] = self._started.get(here, 0) + 1
        meeting_place = store if self._is_ours(store) else PrefixStore("store", self._store)
        members = self._meet(PrefixStore(f"ranks/{times}", meeting_place), here, group_rank, group_size)
        return self._make_group(here, group_rank, members, times, store, timeout)

    def _is_ours(self, store: Store) -> bool:
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        return store is self._store

    @staticmethod
    def _meet(store: Store, here: int, group_rank: int, group_size: int) -> tuple[int, ...]:
        """Which rank is which in the new group. Waits until all have come."""
        claimed = int(store.compare_set(str(group_rank), "", str(here)))
        if claimed != here:
            raise RuntimeError(
                f"init_process_group: ranks {claimed} and {here} both claim to be rank {group_rank}"
            )
        return tuple(int(store.get(str(rank))) for rank in range(group_size))
