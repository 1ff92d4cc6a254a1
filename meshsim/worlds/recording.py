"""The process group that a rank sees: it records each call, then hands it to a transport.

One front serves every world. The fake world's transport matches the calls of all ranks in this process; the
gloo world's hands them to torch's own ``ProcessGroupGloo``. Being a Python subclass of ``dist.ProcessGroup``
it is also what C++ callers reach (DDP's reducer, functional collectives), through c10d's trampolines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from meshsim.checker.compare import LOCAL_SYNCHRONIZATION, NON_MEMBER
from meshsim.source import is_user_file
from meshsim.torch_private import AllgatherOptions, PrefixStore, Store
from meshsim.worlds.calls import (
    POINT_TO_POINT,
    Call,
    Tensors,
    as_list,
    flat,
    is_deferred,
    options_of,
    reduce_op_name,
    split_sizes,
    tensor_facts,
)
from meshsim.worlds.recorder import Recorder
from meshsim.worlds.tensor_names import names_of
from meshsim.worlds.transport import GroupFactory
from meshsim.worlds.works import CoalescedWork, RecordedWork, SkippedWork

# Looking through the scenario's variables costs as much as the rest of recording a call.
_NAMED_FIRST = 64
_NAMED_EVERY = 8
_TORCH = f"{os.sep}torch{os.sep}"
_C10D = os.path.join("torch", "distributed", "distributed_c10d.py")
_DDP_FILES = (
    os.path.join("torch", "nn", "parallel", "distributed.py"),
    os.path.join("torch", "distributed", "algorithms", "join.py"),
)

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
        if recorder.device.index is not None:
            self.bound_device_id = recorder.device
        self._factory = factory
        self._transport = factory(members, era + name, group_rank, store, timeout)
        self._coalescing: list[dist.Work] | None = None
        self._collectives = 0
        self._messages: dict[tuple[str, int | None, int], int] = {}
        self._axis: str | None = None

    @property
    def axis(self) -> str:
        """The mesh axis of this group; empty where it is none of the mesh's."""
        if self._axis is None:
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
        return [torch.device(self._recorder.device.type)]

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
        number = self._number(op, facts.get("peer"), facts.get("tag", 0))
        event = self._recorder.record(
            op,
            self.members,
            self._era + self.name_in_c10d,
            number,
            axis=self.axis,
            async_op=bool(getattr(options, "asyncOp", False)),
            names=self._names(op, number, inputs or outputs),
            **tensor_facts(facts_of),
            **facts,
        )
        caller = sys._getframe(2)
        if event.async_op and _is_ddp_own(caller):
            event.waited = True
        call = Call(event, method, arguments, inputs, outputs, root, peer)
        try:
            work = self._start(call)
            if is_deferred(event) and not _waits_by_itself(caller):
                self._recorder.watch.begin(event, inputs, outputs)
        except BaseException:
            self._recorder.failed(event)
            raise
        if self._coalescing is not None:
            self._coalescing.append(work)
        return work

    def _names(self, op: str, number: int, tensors: Tensors) -> tuple[str, ...]:
        """What the scenario calls the tensor of a collective.

        A program that swaps calls does so from the start, as a rule, and each time it comes round. All ranks
        leave out the same calls.
        """
        if self._recorder.internal or len(tensors) != 1 or op in POINT_TO_POINT:
            return ()
        if number >= _NAMED_FIRST and number % _NAMED_EVERY:
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
        return work

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalescing = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalescing = self._coalescing or [], None
        return CoalescedWork(works)

    # Collectives, under c10d's names

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        tensors, opts = as_list(tensors), options_of(opts, dist.AllreduceOptions)
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
        tensors, opts = as_list(tensors), opts or dist.AllreduceCoalescedOptions()
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
        tensors = as_list(tensors)
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
        tensors = as_list(tensors)
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
        inputs, opts = as_list(inputs), opts or AllgatherOptions()
        return self._make(
            "all_gather",
            "allgather",
            (output_lists, inputs, opts),
            inputs=inputs,
            outputs=flat(output_lists),
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
            outputs=flat(output_lists),
            options=opts,
        )

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, *rest: Any) -> dist.Work:
        inputs, opts = as_list(inputs), opts or dist.GatherOptions()
        return self._make(
            "gather",
            "gather",
            (output_lists, inputs, opts),
            inputs=inputs,
            outputs=flat(output_lists),
            options=opts,
            root=opts.rootRank,
        )

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *rest: Any) -> dist.Work:
        outputs, opts = as_list(outputs), opts or dist.ScatterOptions()
        return self._make(
            "scatter",
            "scatter",
            (outputs, input_lists, opts),
            inputs=flat(input_lists),
            outputs=outputs,
            facts_of=outputs,
            options=opts,
            root=opts.rootRank,
        )

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None) -> dist.Work:
        outputs, opts = as_list(outputs), options_of(opts, dist.ReduceScatterOptions)
        return self._make(
            "reduce_scatter",
            "reduce_scatter",
            (outputs, input_lists, opts),
            inputs=flat(input_lists),
            outputs=outputs,
            options=opts,
            reduce_op=reduce_op_name(opts.reduceOp),
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        opts = options_of(opts, dist.ReduceScatterOptions)
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
        opts = options_of(opts, dist.ReduceScatterOptions)
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
                split_sizes(source, input_splits, len(self.members)),
                split_sizes(output, output_splits, len(self.members)),
            ),
        )

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        outputs, inputs, opts = list(outputs), list(inputs), opts or dist.AllToAllOptions()
        return self._make(
            "all_to_all",
            "alltoall",
            (outputs, inputs, opts),
            inputs=inputs,
            outputs=outputs,
            options=opts,
            splits=(tuple(t.numel() for t in inputs), tuple(t.numel() for t in outputs)),
        )

    def barrier(self, opts: Any = None) -> dist.Work:
        opts = opts or dist.BarrierOptions()
        return self._make("barrier", "barrier", (opts,), options=opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        arguments = (timeout or self.timeout, wait_all_ranks)
        self._make("monitored_barrier", "monitored_barrier", arguments).wait()

    # Point to point

    def send(self, tensors: Any, peer: int, tag: int = 0) -> dist.Work:
        tensors = as_list(tensors)
        return self._make("send", "send", (tensors, peer, tag), inputs=tensors, peer=peer, tag=tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> dist.Work:
        tensors = as_list(tensors)
        return self._make("recv", "recv", (tensors, peer, tag), outputs=tensors, peer=peer, tag=tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        tensors = as_list(tensors)
        return self._make("recv", "recv_anysource", (tensors, tag), outputs=tensors, tag=tag)


def note_call_by_non_member(op: str) -> None:
    """Put a call into the trace that c10d leaves out with a warning, as the rank isn't in the group."""
    group = dist.GroupMember.WORLD
    if isinstance(group, RecordingGroup):
        recorder = group._recorder
        recorder.completed(recorder.record(op, (), "", 0, note=NON_MEMBER))


def _waits_by_itself(caller: FrameType) -> bool:
    """Whether torch made the call from C++: DDP and functional collectives wait before anyone looks.

    Functional collectives hand out tensors that wait when they are used. Watching them would keep a mode on
    the stack for good: their calls begin and end inside it.
    """
    file = caller.f_code.co_filename
    return _TORCH in file and not file.endswith(_C10D)


def _is_ddp_own(frame: FrameType | None) -> bool:
    """Whether DDP itself makes the call: under ``join`` it starts works that it never means to wait for."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith(_DDP_FILES):
            return True
        frame = frame.f_back
    return False
