"""The process group that a rank sees: it records each call, then hands it to a transport.

One front serves every world. The fake world's transport matches the calls of all ranks in this process; the
gloo world's hands them to torch's own ``ProcessGroupGloo``. Being a Python subclass of ``dist.ProcessGroup``
it is also what C++ callers reach (DDP's reducer, functional collectives), through c10d's trampolines.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from meshsim import torch_private
from meshsim.checker.compare import LOCAL_SYNCHRONIZATION, NON_MEMBER
from meshsim.source import is_user_file, user_line
from meshsim.torch_private import AllgatherOptions, PrefixStore, Store
from meshsim.trace import CallState, TraceEvent
from meshsim.verdict import Finding
from meshsim.worlds.tensor_names import names_of
from meshsim.worlds.watch import AccessWatch

if TYPE_CHECKING:
    from meshsim.worlds.injection import Injection

Tensors = list[torch.Tensor]

_DDP_FILES = (
    os.path.join("torch", "nn", "parallel", "distributed.py"),
    os.path.join("torch", "distributed", "algorithms", "join.py"),
)

POINT_TO_POINT = frozenset({"send", "recv"})


def is_deferred(event: TraceEvent) -> bool:
    """Whether the caller may go on before the result is there. isend and send look the same from here."""
    return event.async_op or event.op in POINT_TO_POINT


@dataclass(slots=True)
class Call:
    """One c10d call, in one form for all its spellings.

    ``inputs`` is what this rank contributes, ``outputs`` where its results go, as lists of tensors: for
    ``gather``, ``all_gather``, ``scatter``, ``reduce_scatter`` and ``all_to_all`` the list form has one
    tensor a rank. ``root`` and ``peer`` are group ranks. ``method`` and ``arguments`` are the c10d call
    itself.
    """

    event: TraceEvent
    method: str
    arguments: tuple[Any, ...]
    inputs: Tensors = field(default_factory=list)
    outputs: Tensors = field(default_factory=list)
    root: int | None = None
    peer: int | None = None


class Transport(Protocol):
    """Carries the calls of one rank on one group."""

    def start(self, call: Call) -> dist.Work:
        """Begin the call. Never blocks, as far as the backend allows it."""

    def backend_for(self, device: torch.device) -> Any:
        """What ``group._get_backend(device)`` gives: it answers ``options._timeout`` and ``name()``."""

    def close(self) -> None:
        """Give up the group on this rank."""


def note_call_by_non_member(op: str) -> None:
    """Put a call into the trace that c10d leaves out with a warning, as the rank isn't in the group."""
    group = dist.GroupMember.WORLD
    if isinstance(group, RecordingGroup):
        recorder = group._recorder
        recorder.completed(recorder.record(op, (), "", 0, note=NON_MEMBER))


class GroupFactory(Protocol):
    """How a world makes the transport of a group."""

    def __call__(
        self, members: tuple[int, ...], name: str, group_rank: int, store: Store, timeout: timedelta
    ) -> Transport: ...


class Recorder:
    """One rank's trace, the checks before each call, and what was seen to go wrong."""

    def __init__(self, rank: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rank = rank
        self.events: list[TraceEvent] = []
        self.internal = False
        """While true, calls are meshsim's own (binding the mesh)."""
        self.backend = "gloo"
        """What the rank's groups run on, and with which kind of device."""
        self.device_type = "cpu"
        self.axis_of: Callable[[tuple[int, ...]], str] = lambda members: ""
        self.injection: Injection | None = None
        """The faults of the run that concern this rank."""
        self.checks: tuple[Callable[[Call], None], ...] = ()
        """Called before a call is handed over; may raise (faults, refusals)."""
        self.findings: list[Finding] = []
        """What this rank was seen to do wrong, besides what the traces tell."""
        self.moving_data = False
        """While true, tensors are touched by the harness, not by the scenario."""
        self.watch = AccessWatch(rank, self.findings.append, lambda: self.moving_data or self.internal)
        self._clock = clock
        self._began = clock()
        self.closed = False
        """The rank's program is over; waiting for what it left behind changes nothing any more."""
        self._open: dict[int, Tensors] = {}
        self.groups_asked_for = 0
        """How often the rank has called ``new_group``."""

    def elapsed(self) -> float:
        return self._clock() - self._began

    def record(
        self, op: str, members: tuple[int, ...], group_name: str, number: int, **facts: Any
    ) -> TraceEvent:
        """Append the event of a call that is about to be made."""
        event = TraceEvent(
            rank=self.rank,
            index=len(self.events),
            op=op,
            group=members,
            group_name=group_name,
            number=number,
            site=user_line(sys._getframe(2)),
            internal=self.internal,
            started=self.elapsed(),
            **facts,
        )
        self.events.append(event)
        return event

    def again(self, call: Call, number: int) -> Call:
        """The same call made once more, with an event of its own."""
        event = replace(call.event, index=len(self.events), number=number)
        self.events.append(event)
        return replace(call, event=event)

    def opened(self, call: Call) -> None:
        """A work was handed out."""
        self._open[call.event.index] = call.outputs

    def close(self) -> None:
        """End the record, and take back the works that functional collectives left with torch.

        torch keeps such a work until its tensor is waited for. A work is a Python object, and one that is
        left when the interpreter ends would crash the process.
        """
        self.closed = True
        self.watch.close()
        for tensors in self._open.values():
            torch_private.forget_works_of(tensors)
        self._open.clear()

    def completed(self, event: TraceEvent) -> None:
        self.watch.end(event)
        self._open.pop(event.index, None)
        if event.state is CallState.ISSUED:
            event.state = CallState.COMPLETED
            event.finished = self.elapsed()

    def failed(self, event: TraceEvent) -> None:
        self.watch.end(event)
        event.state = CallState.FAILED
        event.finished = self.elapsed()

    def pending(self) -> TraceEvent | None:
        """The last call that was issued and not completed."""
        for event in reversed(self.events):
            if event.state is CallState.ISSUED:
                return event
        return None


def _as_list(tensors: torch.Tensor | Sequence[torch.Tensor]) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _flat(lists: Sequence[Any]) -> Tensors:
    """``[[a, b]]`` or ``[a, b]`` as ``[a, b]``."""
    flat: Tensors = []
    for item in lists:
        flat.extend([item] if isinstance(item, torch.Tensor) else item)
    return flat


_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def _tensor_facts(tensors: Tensors) -> dict[str, Any]:
    if not tensors:
        return {}
    return {
        "dtype": dtype_name(tensors[0].dtype),
        "shapes": tuple(tuple(t.shape) for t in tensors),
        "numel": sum(t.numel() for t in tensors),
    }


def reduce_op_name(reduce_op: Any) -> str:
    """``SUM`` for ``ReduceOp.SUM``, whichever of c10d's two types it comes as."""
    kind = getattr(reduce_op, "op", reduce_op)
    return str(kind).rsplit(".", 1)[-1]


def _is_ddp_own(frame: FrameType | None) -> bool:
    """Whether DDP itself makes the call: under ``join`` it starts works that it never means to wait for."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith(_DDP_FILES):
            return True
        frame = frame.f_back
    return False


class RecordedWork(dist.Work):
    """A work whose waiting and completion show in the trace."""

    def __init__(self, work: dist.Work, call: Call, recorder: Recorder) -> None:
        super().__init__()
        self._work = work
        self._call = call
        self._event = call.event
        self._recorder = recorder

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if self._recorder.closed:
            return True
        self._event.waited = True
        recorder = self._recorder
        # gloo copies some results into place in here.
        before, recorder.moving_data = recorder.moving_data, True
        try:
            done = self._work.wait(timeout) if timeout > timedelta(0) else self._work.wait()
        except BaseException:
            recorder.failed(self._event)
            raise
        finally:
            recorder.moving_data = before
        self._complete()
        if self._event.op == "recv" and self._event.peer is None:
            self._event.peer = self._event.group[self._work._source_rank()]
        return bool(done)

    def _complete(self) -> None:
        first = self._event.state is CallState.ISSUED
        self._recorder.completed(self._event)
        if first and self._event.op == "reduce" and self._event.root != self._event.rank:
            self._recorder.watch.leave_undefined(self._event, self._call.outputs)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        done = bool(self._work.is_completed())
        if done:
            self._event.waited = True
            self._complete()
        return done

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        self._event.waited = True
        return self._work.result()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    source_rank = _source_rank

    def get_future(self) -> Any:
        # From here on the future says when the result is there, and its callbacks may read it.
        self._event.waited = True
        self._recorder.watch.end(self._event)
        future = self._work.get_future()
        if future.done():
            self._complete()
        return future


class SkippedWork(dist.Work):
    """Of a call that an injected fault left out: done, and nothing has happened.

    To the checker the event is no call on the group, only a mark that the fault fired.
    """

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._outputs = call.outputs
        event = call.event
        event.group, event.group_name = (event.rank,), ""
        event.state, event.waited = CallState.COMPLETED, True

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> Tensors:
        return self._outputs

    def get_future(self) -> Any:
        future: torch.futures.Future[Tensors] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class _CoalescedWork(dist.Work):
    """The works of one coalescing block, waited for together."""

    def __init__(self, works: list[dist.Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        results = [work.wait(timeout) for work in self._works]
        return all(results)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def get_future(self) -> Any:
        return torch.futures.collect_all([work.get_future() for work in self._works])


# c10d's stubs give most methods two or three signatures; only one reaches a group, and it's enough here.
_ProcessGroup: Any = dist.ProcessGroup


class RecordingGroup(_ProcessGroup):  # type: ignore[misc]
    """One rank's end of one group. ``members`` are global ranks in group order."""

    def __init__(
        self,
        store: Store,
        group_rank: int,
        *,
        members: tuple[int, ...],
        name: str,
        timeout: timedelta,
        recorder: Recorder,
        factory: GroupFactory,
        era: str = "",
    ) -> None:
        super().__init__(group_rank, len(members))
        self.members = members
        self.name_in_c10d = name
        self._era = era
        """Sets groups of a later default group apart from those before it: c10d gives out names anew."""
        self.description = ""
        self.timeout = timeout
        self._store = store
        self._recorder = recorder
        self._factory = factory
        self._transport = factory(members, era + name, group_rank, store, timeout)
        self._coalescing: list[dist.Work] | None = None
        self._collectives = 0
        self._messages: dict[tuple[str, int | None, int], int] = {}
        self._axis: str | None = None

    @property
    def axis(self) -> str:
        """The mesh axis of this group. Looked up at the first call: the mesh is bound after the groups are
        made.
        """
        if self._axis is None or self._recorder.internal:
            self._axis = self._recorder.axis_of(self.members)
        return self._axis

    def _number(self, op: str, peer: int | None, tag: int) -> int:
        """How many such calls this rank has made on this group before."""
        if op not in POINT_TO_POINT:
            self._collectives += 1
            return self._collectives - 1
        number = self._messages.get((op, peer, tag), 0)
        self._messages[op, peer, tag] = number + 1
        return number

    # What c10d asks about a group

    def getBackendName(self) -> str:
        # Not "gloo": DDP's logger would then ask C++ for a gloo backend object.
        return "meshsim"

    def getGroupName(self) -> str:
        return self.name_in_c10d

    def getGroupDesc(self) -> str:
        return self.description

    # Python reads these; C++ reads the two methods above.
    @property
    def group_name(self) -> str:
        return self.name_in_c10d

    @property
    def group_desc(self) -> str:
        return self.description

    def _set_group_desc(self, description: str) -> None:
        self.description = description

    def __repr__(self) -> str:
        return f"<group {self.axis + ' ' if self.axis else ''}of ranks {list(self.members)}>"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(self._recorder.device_type)]

    def _get_backend(self, device: torch.device) -> Any:
        return self._transport.backend_for(torch.device(device))

    def _has_hooks(self) -> bool:
        return False

    def _get_backend_name(self) -> str:
        return self._recorder.backend

    def get_group_store(self) -> Store:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout
        self._transport.backend_for(torch.device("cpu")).options._timeout = timeout

    def shutdown(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.close()

    def new_group(
        self,
        ranks: Sequence[int],
        *,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_name: str = "",
        group_desc: str | None = None,
    ) -> RecordingGroup | None:
        """Called by ``dist.new_group`` on the default group, on members and on the others."""
        members = tuple(self.members[rank] for rank in ranks)
        event = self._recorder.record(
            "new_group",
            members,
            self._era + group_name,
            self._recorder.groups_asked_for,
            note="" if group_name.isdecimal() else LOCAL_SYNCHRONIZATION,
            axis=self._recorder.axis_of(members),
        )
        self._recorder.groups_asked_for += 1
        self._recorder.completed(event)
        if self._recorder.rank not in members:
            return None
        group = RecordingGroup(
            PrefixStore(f"{group_name}/", self._store),
            members.index(self._recorder.rank),
            members=members,
            name=group_name,
            timeout=timeout or self.timeout,
            recorder=self._recorder,
            factory=self._factory,
            era=self._era,
        )
        group.description = group_desc or ""
        return group

    # Making a call

    def _member(self, place: int, op: str) -> int:
        """The rank at a place in the group."""
        if not 0 <= place < len(self.members):
            raise ValueError(
                f"{op}: {place} is no rank in a group of {len(self.members)}, ranks {list(self.members)} of "
                f"the world: give a rank in the group, from 0 to {len(self.members) - 1}"
            )
        return self.members[place]

    def _make(
        self,
        op: str,
        method: str,
        arguments: tuple[Any, ...],
        *,
        inputs: Tensors | None = None,
        outputs: Tensors | None = None,
        facts_of: Tensors | None = None,
        options: Any = None,
        root: int | None = None,
        peer: int | None = None,
        **facts: Any,
    ) -> dist.Work:
        inputs, outputs = inputs or [], outputs or []
        if facts_of is None:
            facts_of = inputs or outputs
        if root is not None:
            facts["root"] = self._member(root, op)
        if peer is not None:
            facts["peer"] = self._member(peer, op)
        event = self._recorder.record(
            op,
            self.members,
            self._era + self.name_in_c10d,
            self._number(op, facts.get("peer"), facts.get("tag", 0)),
            axis=self.axis,
            async_op=bool(getattr(options, "asyncOp", False)),
            names=self._names(op, inputs or outputs),
            **_tensor_facts(facts_of),
            **facts,
        )
        if event.async_op and _is_ddp_own(sys._getframe(2)):
            event.waited = True
        call = Call(event, method, arguments, inputs, outputs, root, peer)
        try:
            work = self._start(call)
        except BaseException:
            self._recorder.failed(event)
            raise
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _names(self, op: str, tensors: Tensors) -> tuple[str, ...]:
        """What the scenario calls the tensor of a collective."""
        if self._recorder.internal or len(tensors) != 1 or op in POINT_TO_POINT:
            return ()
        return names_of(tensors[0], sys._getframe(2))

    def _start(self, call: Call) -> dist.Work:
        injection = self._recorder.injection
        fired = injection.before(call) if injection is not None else None
        if fired == "skip":
            self._collectives -= call.event.op not in POINT_TO_POINT
            return SkippedWork(call)
        if fired == "duplicate":
            self._hand_over(
                self._recorder.again(call, self._number(call.event.op, call.peer, call.event.tag))
            ).wait()
        return self._hand_over(call)

    def _hand_over(self, call: Call) -> dist.Work:
        for check in self._recorder.checks:
            check(call)
        work = RecordedWork(self._transport.start(call), call, self._recorder)
        self._recorder.opened(call)
        if is_deferred(call.event):
            self._recorder.watch.begin(call.event, call.inputs, call.outputs)
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalescing = self._coalescing or [], None
        return _CoalescedWork(works)

    # Collectives, under c10d's names

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensors, opts = _as_list(tensors), _options(opts, dist.AllreduceOptions)
        return self._make(
            "all_reduce",
            "allreduce",
            (tensors, opts),
            inputs=tensors,
            outputs=tensors,
            options=opts,
            reduce_op=reduce_op_name(opts.reduceOp),
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensors, opts = _as_list(tensors), opts or dist.AllreduceCoalescedOptions()
        return self._make(
            "all_reduce_coalesced",
            "allreduce_coalesced",
            (tensors, opts),
            inputs=tensors,
            outputs=tensors,
            options=opts,
            reduce_op=reduce_op_name(opts.reduceOp),
        )

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensors = _as_list(tensors)
        if isinstance(opts, int):
            root, opts = opts, dist.BroadcastOptions()
            opts.rootRank = root
        opts = opts or dist.BroadcastOptions()
        return self._make(
            "broadcast",
            "broadcast",
            (tensors, opts),
            inputs=tensors,
            outputs=tensors,
            options=opts,
            root=opts.rootRank,
        )

    def reduce(self, tensors: Any, opts: Any = None, *rest: Any) -> dist.Work:
        tensors = _as_list(tensors)
        opts = opts if isinstance(opts, dist.ReduceOptions) else dist.ReduceOptions()
        return self._make(
            "reduce",
            "reduce",
            (tensors, opts),
            inputs=tensors,
            outputs=tensors,
            options=opts,
            root=opts.rootRank,
            reduce_op=reduce_op_name(opts.reduceOp),
        )

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None) -> dist.Work:
        inputs, opts = _as_list(inputs), opts or AllgatherOptions()
        return self._make(
            "all_gather",
            "allgather",
            (output_lists, inputs, opts),
            inputs=inputs,
            outputs=_flat(output_lists),
            options=opts,
        )

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> dist.Work:
        opts = opts or AllgatherOptions()
        return self._make(
            "all_gather_into_tensor",
            "all_gather_single",
            (output, source, opts),
            inputs=[source],
            outputs=[output],
            options=opts,
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        outputs, inputs, opts = list(outputs), list(inputs), opts or AllgatherOptions()
        return self._make(
            "all_gather_into_tensor_coalesced",
            "all_gather_single_coalesced",
            (outputs, inputs, opts),
            inputs=inputs,
            outputs=outputs,
            options=opts,
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> dist.Work:
        inputs, opts = list(inputs), opts or AllgatherOptions()
        return self._make(
            "all_gather_coalesced",
            "allgather_coalesced",
            (output_lists, inputs, opts),
            inputs=inputs,
            outputs=_flat(output_lists),
            options=opts,
        )

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, *rest: Any) -> dist.Work:
        inputs, opts = _as_list(inputs), opts or dist.GatherOptions()
        return self._make(
            "gather",
            "gather",
            (output_lists, inputs, opts),
            inputs=inputs,
            outputs=_flat(output_lists),
            options=opts,
            root=opts.rootRank,
        )

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *rest: Any) -> dist.Work:
        outputs, opts = _as_list(outputs), opts or dist.ScatterOptions()
        return self._make(
            "scatter",
            "scatter",
            (outputs, input_lists, opts),
            inputs=_flat(input_lists),
            outputs=outputs,
            facts_of=outputs,
            options=opts,
            root=opts.rootRank,
        )

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> dist.Work:
        outputs, opts = _as_list(outputs), _options(opts, dist.ReduceScatterOptions)
        return self._make(
            "reduce_scatter",
            "reduce_scatter",
            (outputs, input_lists, opts),
            inputs=_flat(input_lists),
            outputs=outputs,
            options=opts,
            reduce_op=reduce_op_name(opts.reduceOp),
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        opts = _options(opts, dist.ReduceScatterOptions)
        return self._make(
            "reduce_scatter_tensor",
            "reduce_scatter_single",
            (output, source, opts),
            inputs=[source],
            outputs=[output],
            options=opts,
            reduce_op=reduce_op_name(opts.reduceOp),
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        outputs, inputs = list(outputs), list(inputs)
        opts = _options(opts, dist.ReduceScatterOptions)
        return self._make(
            "reduce_scatter_tensor_coalesced",
            "reduce_scatter_single_coalesced",
            (outputs, inputs, opts),
            inputs=inputs,
            outputs=outputs,
            options=opts,
            reduce_op=reduce_op_name(opts.reduceOp),
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        opts = opts or dist.AllToAllOptions()
        output_splits, input_splits = list(output_splits or ()), list(input_splits or ())
        return self._make(
            "all_to_all_single",
            "all_to_all_single",
            (output, source, output_splits, input_splits, opts),
            inputs=[source],
            outputs=[output],
            options=opts,
            splits=(
                _splits(source, input_splits, len(self.members)),
                _splits(output, output_splits, len(self.members)),
            ),
        )

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        outputs, inputs, opts = list(outputs), list(inputs), opts or dist.AllToAllOptions()
        return self._make(
            "all_to_all", "alltoall", (outputs, inputs, opts), inputs=inputs, outputs=outputs, options=opts
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        opts = opts or dist.BarrierOptions()
        return self._make("barrier", "barrier", (opts,), options=opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        arguments = (timeout or self.timeout, wait_all_ranks)
        self._make("monitored_barrier", "monitored_barrier", arguments).wait()

    # Point to point

    def send(self, tensors: Any, peer: int, tag: int = 0) -> dist.Work:
        tensors = _as_list(tensors)
        return self._make("send", "send", (tensors, peer, tag), inputs=tensors, peer=peer, tag=tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> dist.Work:
        tensors = _as_list(tensors)
        return self._make("recv", "recv", (tensors, peer, tag), outputs=tensors, peer=peer, tag=tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        tensors = _as_list(tensors)
        return self._make("recv", "recv_anysource", (tensors, tag), outputs=tensors, tag=tag)


def _options(opts: Any, kind: type[Any]) -> Any:
    """c10d's options object; c10d also takes a bare reduce op in its place."""
    if isinstance(opts, kind):
        return opts
    made = kind()
    if opts is not None:
        made.reduceOp = opts
    return made


def _splits(tensor: torch.Tensor, given: Sequence[int], parts: int) -> tuple[int, ...]:
    """Split sizes along the first dimension; an empty list means equal parts, as c10d has it."""
    if given:
        return tuple(given)
    rows = tensor.shape[0] if tensor.ndim else 1
    return (rows // parts,) * parts if rows % parts == 0 else ()
