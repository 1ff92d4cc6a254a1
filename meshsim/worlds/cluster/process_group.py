"""A rank's process groups in a job: recorded, carried by the backend's own groups."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshsim import torch_private
from meshsim.checker.compare import is_reduction
from meshsim.torch_private import PrefixStore, Store
from meshsim.trace import CallState, TraceEvent
from meshsim.worlds.calls import POINT_TO_POINT, Call
from meshsim.worlds.cluster.backends import ClusterBackend
from meshsim.worlds.cluster.connections import Connections, cut, open_sockets, opened_since
from meshsim.worlds.recorder import Recorder
from meshsim.worlds.recording import RecordingGroup
from meshsim.worlds.transport import Transport
from meshsim.worlds.works import FinishedWork

_DEFAULT_GROUP = "0"
# c10d's own for gloo; the run's deadline is what ends a run.
_TIMEOUT = timedelta(minutes=30)


class JobTransport:
    """Hands a rank's calls on one group to the backend's group."""

    def __init__(
        self,
        group: Any,
        backend: Any,
        device: torch.device,
        *,
        averages: bool,
        connections: Connections | None = None,
    ) -> None:
        self._group = group
        self._connections = connections or {}
        self._backend = backend
        self._device = device
        self._averages = averages
        self._in_flight: deque[tuple[TraceEvent, Any]] = deque()
        self._batch: list[_BatchedWork] = []
        self._batch_left = 0

    def start(self, call: Call) -> dist.Work:
        if self._batch_left and call.event.op in POINT_TO_POINT:
            return self._start_in_batch(call)
        work = self._averaged(call) if self._must_divide(call) else self._plain(call)
        if work is None:  # monitored_barrier waits by itself
            return FinishedWork()
        self._keep(call.event, work)
        return work

    def _plain(self, call: Call) -> Any:
        return getattr(self._group, call.method)(*call.arguments)

    # AVG where the backend has none

    def _must_divide(self, call: Call) -> bool:
        return not self._averages and call.event.reduce_op == "AVG" and is_reduction(call.event.op)

    def _averaged(self, call: Call) -> dist.Work:
        options = next(a for a in call.arguments if hasattr(a, "reduceOp"))
        asked, options.reduceOp = options.reduceOp, dist.ReduceOp.SUM
        try:
            return _AveragedWork(self._plain(call), call.outputs, self._group.size())
        finally:
            options.reduceOp = asked

    # Point-to-point calls that must start together

    def begin_batch(self, operations: int) -> None:
        """The next so many point-to-point calls are one ``batch_isend_irecv``."""
        if self._backend is not self._group and getattr(self._backend, "supports_coalescing", False):
            self._batch, self._batch_left = [], operations
            self._group._start_coalescing(self._device)

    def _start_in_batch(self, call: Call) -> dist.Work:
        self._plain(call)
        work = _BatchedWork()
        self._batch.append(work)
        self._batch_left -= 1
        if self._batch_left == 0:
            together = self._group._end_coalescing(self._device)
            for each in self._batch:
                each.together = together
            self._keep(call.event, together)
            self._batch = []
        return work

    # Watching

    def _keep(self, event: TraceEvent, work: Any) -> None:
        """On an accelerator a call that was waited for may still run: the device is behind the host."""
        if self._device.type == "cpu":
            return
        while self._in_flight and _is_done(self._in_flight[0][1]):
            self._in_flight.popleft()
        self._in_flight.append((event, work))

    def unfinished(self) -> list[TraceEvent]:
        """Calls whose results aren't there yet, as far as the device has come."""
        return [event for event, work in list(self._in_flight) if not _is_done(work)]

    def backend_for(self, device: torch.device) -> Any:
        return self._backend

    def close(self) -> None:
        """Nothing yet: a connection closed by one rank would be an error in the ranks that still use it."""

    def abort(self) -> None:
        """End the group by force; calls under way raise or return."""
        cut(self._connections)
        abort = getattr(self._backend, "abort", None)
        if abort is not None:
            abort()

    def let_go(self) -> None:
        self._in_flight.clear()
        shutdown = getattr(self._backend, "shutdown", None)
        if self._device.type != "cpu" and shutdown is not None:
            shutdown()
        self._group = self._backend = None


def _is_done(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except RuntimeError:  # it failed, or its group was aborted
        return True


class _AveragedWork(dist.Work):
    """A sum that is divided by the number of ranks once it is there."""

    def __init__(self, work: Any, outputs: list[torch.Tensor], size: int) -> None:
        super().__init__()
        self._work, self._outputs, self._size = work, outputs, size
        self._divided = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        done = self._work.wait(timeout) if timeout > timedelta(0) else self._work.wait()
        if not self._divided:
            self._divided = True
            for output in self._outputs:
                output.div_(self._size)
        return bool(done)

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def get_future(self) -> Any:
        self.wait()
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class _BatchedWork(dist.Work):
    """One call of a batch; it ends with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.together: Any = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self.together is not None:
            self.together.wait()
        return True

    def is_completed(self) -> bool:
        return self.together is not None and bool(self.together.is_completed())

    def is_success(self) -> bool:
        return self.together is not None and bool(self.together.is_success())

    def get_future(self) -> Any:
        return self.together.get_future()


class JobGroups:
    """All groups that a rank made in a run."""

    def __init__(
        self,
        backend: ClusterBackend,
        recorder: Recorder,
        store: Store,
        *,
        rank: int,
        world_size: int,
        device: torch.device,
        address: str,
    ) -> None:
        self.world: RecordingGroup | None = None
        self._backend = backend
        self._recorder = recorder
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._device = device
        self._address = address
        self._started: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._made: list[JobTransport] = []

    def join_world(self) -> None:
        """Start the default process group with the other ranks."""
        store = PrefixStore(f"default_pg/{_DEFAULT_GROUP}/", self._store)
        members = tuple(range(self._world_size))
        self._recorder.backend = self._backend.name
        self._recorder.device = self._device
        self.world = RecordingGroup(
            store,
            self._rank,
            members=members,
            name=_DEFAULT_GROUP,
            timeout=_TIMEOUT,
            recorder=self._recorder,
            factory=self._make,
        )
        torch_private.install_default_group(
            self.world,
            store,
            _DEFAULT_GROUP,
            ranks={rank: rank for rank in members},
            backend=self._backend.name,
        )

    def _make(
        self, members: tuple[int, ...], name: str, group_rank: int, store: Store, timeout: timedelta
    ) -> Transport:
        self._started[name, members] += 1
        which = f"{members[0]}-{len(members)}-{hash(members) & 0xFFFFFFFF:08x}"
        place = f"{name}/{which}/{self._started[name, members]}/"
        before = open_sockets()
        group, backend = self._backend.start_group(
            PrefixStore(f"groups/{place}", self._store),
            group_rank,
            members=members,
            name=name,
            timeout=timeout,
            device=self._device,
            address=self._address,
        )
        transport = JobTransport(
            group,
            backend,
            self._device,
            averages=self._backend.averages,
            connections=opened_since(before) if self._device.type == "cpu" else None,
        )
        self._made.append(transport)
        return transport

    def note_unfinished(self) -> list[TraceEvent]:
        """Mark the calls that the device hasn't completed as such; the earliest first."""
        events = sorted((e for t in self._made for e in t.unfinished()), key=lambda event: event.index)
        for event in events:
            if event.state is CallState.COMPLETED:
                event.state, event.finished = CallState.ISSUED, None
        return events

    def batch_told(self) -> Callable[[Any, int], None]:
        """For ``torch_private.p2p_batches_told``."""

        def tell(group: Any, operations: int) -> None:
            transport = getattr(group, "_transport", None)
            if isinstance(transport, JobTransport):
                transport.begin_batch(operations)

        return tell

    def abort(self) -> None:
        for transport in self._made:
            transport.abort()

    def close(self) -> None:
        """Take the groups out of c10d and let go of them."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self.world = None
        for transport in self._made:
            transport.let_go()
