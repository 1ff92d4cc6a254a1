"""Watching tensors that belong to a call under way: read or written before ``wait()``, or left undefined by
it.

While a rank has such tensors, two torch modes look at each operation's arguments. They are pushed only onto
empty mode stacks, so that they never stand between a user's mode and its exit; a program that starts an async
call inside a mode of its own is not watched there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from meshsim import torch_private
from meshsim.checker.kinds import severity_of
from meshsim.checker.wording import group_name, site_name
from meshsim.source import user_line
from meshsim.trace import SourceLine, TraceEvent
from meshsim.verdict import Finding, VerdictKind

# Read a tensor's memory without an operation that the dispatcher sees.
_UNDISPATCHED_READS = frozenset(
    {torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__repr__}
)
# Communication itself, and waiting for it.
_OWN_NAMESPACES = frozenset({"_c10d_functional", "c10d", "_c10d_functional_autograd", "c10d_functional"})
# Overwrite all of their first argument without looking at it.
_OVERWRITES = frozenset({"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_"})


@dataclass(slots=True)
class _Held:
    """A tensor that a call holds. It is kept alive, so that its memory can't become another tensor's."""

    event: TraceEvent
    tensor: torch.Tensor
    first: int
    last: int
    readable: bool
    undefined: bool = False

    def meets(self, first: int, last: int) -> bool:
        return first <= self.last and self.first <= last

    def shares(self, tensor: torch.Tensor) -> bool:
        """Whether memory is shared for certain; interleaved strides are given the benefit of the doubt."""
        return self.tensor.is_contiguous() and tensor.is_contiguous() and self.meets(*_extent(tensor))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the first and the last byte that the tensor spans."""
    first = tensor.data_ptr()
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (span + 1) * tensor.element_size() - 1


def _plain(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.numel():
            yield tensor


class AccessWatch:
    """One rank's watch. ``paused()`` says when the harness itself is moving data."""

    def __init__(self, rank: int, report: Callable[[Finding], None], paused: Callable[[], bool]) -> None:
        self._rank = rank
        self._report = report
        self._paused = paused
        self._held: dict[int, list[_Held]] = {}
        self._told: set[tuple[int, VerdictKind]] = set()
        self._modes: tuple[Any, Any] = (_DispatchWatch(self), _FunctionWatch(self))
        self._pushed = [False, False]

    # From the process group

    def begin(
        self, event: TraceEvent, sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """A call is under way: its sources may be read, its results may not be touched."""
        for tensor in _plain(results):
            self._hold(event, tensor, readable=False)
        written = {id(tensor) for tensor in results}
        for tensor in _plain(sources):
            if id(tensor) not in written:
                self._hold(event, tensor, readable=True)
        self._push()

    def meet(
        self, event: TraceEvent, sources: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Another call is about to be made: it may not take memory that a call under way needs."""
        if not self._held:
            return
        written = {id(tensor) for tensor in results}
        for tensor in _plain((*sources, *(t for t in results if all(t is not s for s in sources)))):
            held_here = self._held.get(tensor.untyped_storage().data_ptr(), ())
            for held in [held for held in held_here if held.shares(tensor)]:
                if held.undefined:
                    if any(tensor is source for source in sources):
                        self._tell(held, VerdictKind.UNDEFINED_RESULT)
                elif id(tensor) in written or not held.readable:
                    self._tell(held, VerdictKind.OVERLAPPING_BUFFERS, event)

    def end(self, event: TraceEvent) -> None:
        """The call was waited for."""
        if self._held:
            self._drop(lambda held: held.event is event and not held.undefined)
        self._pop()

    def leave_undefined(self, event: TraceEvent, tensors: Sequence[torch.Tensor]) -> None:
        """The call leaves these tensors with values that nobody promises."""
        for tensor in _plain(tensors):
            self._hold(event, tensor, readable=False, undefined=True)
        self._push()

    def close(self) -> None:
        self._held.clear()
        self._pop()

    def _hold(
        self, event: TraceEvent, tensor: torch.Tensor, *, readable: bool, undefined: bool = False
    ) -> None:
        key = tensor.untyped_storage().data_ptr()
        held = _Held(event, tensor.detach(), *_extent(tensor), readable, undefined)
        self._held.setdefault(key, []).append(held)

    def _drop(self, unwanted: Callable[[_Held], bool]) -> None:
        for key in list(self._held):
            kept = [held for held in self._held[key] if not unwanted(held)]
            if kept:
                self._held[key] = kept
            else:
                del self._held[key]

    def _push(self) -> None:
        for at, (mode, depth) in enumerate(zip(self._modes, torch_private.mode_stack_depths(), strict=True)):
            if self._held and not self._pushed[at] and depth == 0:
                mode.__enter__()
                self._pushed[at] = True

    def _pop(self) -> None:
        if self._held or not any(self._pushed):
            return
        for at, (mode, top) in enumerate(zip(self._modes, torch_private.mode_stack_tops(), strict=True)):
            if self._pushed[at] and top is mode:
                mode.__exit__(None, None, None)
                self._pushed[at] = False

    # From the modes

    def look(self, tensor: torch.Tensor, *, write: bool, overwrite: bool = False) -> None:
        """An operation reads or writes ``tensor``."""
        local = getattr(tensor, "_local_tensor", tensor)
        if local.layout is not torch.strided or not local.numel():
            return
        try:
            held_here = self._held.get(local.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):  # a tensor without storage: fake, functional, batched
            return
        if held_here:
            extent = _extent(local)
            for held in [held for held in held_here if held.meets(*extent)]:
                self._judge(held, write=write, overwrite=overwrite)

    def _judge(self, held: _Held, *, write: bool, overwrite: bool) -> None:
        if held.undefined:
            if overwrite:
                self._drop(lambda other: other is held)
            else:
                self._tell(held, VerdictKind.UNDEFINED_RESULT)
        elif write:
            self._tell(held, VerdictKind.WRITE_BEFORE_WAIT)
        elif not held.readable:
            self._tell(held, VerdictKind.READ_BEFORE_WAIT)

    def _tell(self, held: _Held, kind: VerdictKind, other: TraceEvent | None = None) -> None:
        if (held.event.index, kind) in self._told:
            return
        self._told.add((held.event.index, kind))
        self._report(_finding(kind, held.event, user_line(sys._getframe(1)), other))

    def watching(self) -> bool:
        return bool(self._held) and not self._paused()


def _finding(
    kind: VerdictKind, event: TraceEvent, access: SourceLine | None, other: TraceEvent | None = None
) -> Finding:
    call = f"{event.op} number {event.number + 1} on {group_name(event)} at {site_name(event.site)}"
    line = site_name(access)
    if kind is VerdictKind.UNDEFINED_RESULT:
        what = f"uses at {line} a buffer whose value is undefined after {call}: only rank {event.root} has it"
    elif other is not None:
        what = f"gives {other.op} at {line} memory that {call} still needs, before wait()"
    else:
        verb = "reads" if kind is VerdictKind.READ_BEFORE_WAIT else "writes"
        what = f"{verb} at {line} a buffer of {call}, before wait()"
    return Finding(
        kind,
        f"rank {event.rank} {what}",
        ranks=(event.rank,),
        details={
            "call": event.to_json(),
            "other": None if other is None else other.to_json(),
            "access": None if access is None else str(access),
        },
        severity=severity_of(kind),
    )


@lru_cache(maxsize=4096)
def _signature(func: Any) -> tuple[bool, bool, tuple[bool, ...], frozenset[str]]:
    """Of an operation: whether it only makes a view, whether it overwrites, and what it writes to."""
    schema = func._schema
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    writes = tuple(bool(a.alias_info is not None and a.alias_info.is_write) for a in schema.arguments)
    names = frozenset(a.name for a, writing in zip(schema.arguments, writes, strict=True) if writing)
    return is_view, schema.name in _OVERWRITES, writes, names


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, torch.Tensor):
                yield item


class _DispatchWatch(TorchDispatchMode):
    # Else torch refuses torch.cond, flex_attention and their like while a call is under way.
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch wraps __torch_dispatch__ in something that imports its compiler at the first call:
        # seconds, in every process that makes an asynchronous call. Tried on torch 2.13.0; where torch
        # doesn't ask, it only is slower.
        return False

    def __init__(self, watch: AccessWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._watch.watching() and func.namespace not in _OWN_NAMESPACES:
            is_view, overwrites, writes, names = _signature(func)
            if not is_view:
                for at, arg in enumerate(args):
                    for tensor in _tensors(arg):
                        self._watch.look(tensor, write=writes[at], overwrite=overwrites and at == 0)
                for name, arg in kwargs.items():
                    for tensor in _tensors(arg):
                        self._watch.look(tensor, write=name in names)
        return func(*args, **kwargs)


class _FunctionWatch(TorchFunctionMode):
    def __init__(self, watch: AccessWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _UNDISPATCHED_READS and self._watch.watching() and isinstance(args[0], torch.Tensor):
            self._watch.look(args[0], write=False)
        return func(*args, **(kwargs or {}))
