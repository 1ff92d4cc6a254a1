"""Random correct programs of collectives: what one is, how Hypothesis draws it, and how a rank runs it.

A program is data: a list of steps, each one call on one group, the same on every rank. Tensors' contents
follow from the step's position and the rank, so that any world computes on the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from hypothesis import strategies as st

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int32", "int64")
COMPLEX = ("complex64", "complex128")
MOVABLE = (*FLOATS, *INTEGERS, "bool", *COMPLEX)
SENDABLE = (*MOVABLE, "int16", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")

REDUCIBLE = {
    "SUM": (*FLOATS, *INTEGERS, "bool", *COMPLEX),
    "AVG": (*FLOATS, *COMPLEX),
    "PRODUCT": (*FLOATS, *INTEGERS, "bool"),
    "MIN": (*FLOATS, *INTEGERS, "bool"),
    "MAX": (*FLOATS, *INTEGERS, "bool"),
    "BAND": (*INTEGERS, "bool"),
    "BOR": (*INTEGERS, "bool"),
    "BXOR": (*INTEGERS, "bool"),
}
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "coalesced_all_reduce")
MOVES = (
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "coalesced_all_gather",
    "all_to_all",
    "all_to_all_single",
    "scatter",
)
FUNCTIONAL_REDUCTIONS = ("functional_all_reduce", "functional_reduce_scatter")
FUNCTIONAL_MOVES = ("functional_all_gather", "functional_all_to_all", "functional_broadcast")
POINT_TO_POINT = ("send_recv", "ring")
OBJECTS = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list")
OPERATIONS = (
    *REDUCTIONS,
    *MOVES,
    "gather",
    *FUNCTIONAL_REDUCTIONS,
    *FUNCTIONAL_MOVES,
    *POINT_TO_POINT,
    *OBJECTS,
    "barrier",
)
ASYNC = frozenset(
    {
        "all_reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "coalesced_all_reduce",
        "coalesced_all_gather",
        *MOVES,
        "gather",
        "barrier",
        "send_recv",
        "ring",
    }
)


@dataclass(frozen=True)
class Step:
    """One call. ``root`` and ``peer`` are places in ``group``; place i sends ``counts[i][j]`` rows to j."""

    op: str
    group: tuple[int, ...]
    dtype: str = "float32"
    shape: tuple[int, ...] = (1,)
    reduce_op: str = ""
    root: int = 0
    peer: int = 0
    tag: int = 0
    counts: tuple[tuple[int, ...], ...] = ()
    is_async: bool = False
    fractions: bool = False
    """Floating-point contents with fractions, whose sums depend on the order in the last bits."""


@dataclass(frozen=True)
class Program:
    world_size: int
    steps: tuple[Step, ...]
    waits: int = 0
    """Rotates the order in which works are waited for."""


@st.composite
def programs(draw: st.DrawFn, world_size: int, first: str | None = None) -> Program:
    """Programs of one to five calls, the first of them ``first`` if given."""
    first_step = draw(_steps(world_size, OPERATIONS if first is None else (first,)))
    others = draw(st.lists(_steps(world_size, OPERATIONS), max_size=4))
    return Program(world_size, (first_step, *others), draw(st.integers(0, 5)))


@st.composite
def _steps(draw: st.DrawFn, world_size: int, operations: tuple[str, ...]) -> Step:
    op = draw(st.sampled_from(operations))
    smallest = 2 if op in POINT_TO_POINT else 1
    members = draw(
        st.sets(st.integers(0, world_size - 1), min_size=smallest, max_size=world_size).map(sorted).map(tuple)
    )
    reduces = op in REDUCTIONS or op in FUNCTIONAL_REDUCTIONS
    reduce_op = draw(st.sampled_from(sorted(REDUCIBLE))) if reduces else ""
    root = draw(st.integers(0, len(members) - 1))
    return Step(
        op=op,
        group=members,
        dtype=draw(st.sampled_from(_dtypes(op, reduce_op))),
        shape=draw(_shapes(op)),
        reduce_op=reduce_op,
        root=root,
        peer=(root + draw(st.integers(1, max(1, len(members) - 1)))) % len(members),
        tag=draw(st.integers(0, 2)),
        counts=draw(_counts(len(members))) if op in ("all_to_all_single", "functional_all_to_all") else (),
        is_async=op in ASYNC and draw(st.booleans()),
        fractions=draw(st.booleans()),
    )


def _dtypes(op: str, reduce_op: str) -> tuple[str, ...]:
    if reduce_op:
        known = REDUCIBLE[reduce_op]
        return tuple(d for d in known if d not in COMPLEX) if op in FUNCTIONAL_REDUCTIONS else known
    if op in POINT_TO_POINT:
        return SENDABLE
    if op in ("gather", *FUNCTIONAL_MOVES):
        return tuple(dtype for dtype in MOVABLE if dtype not in COMPLEX)
    return MOVABLE


def _shapes(op: str) -> st.SearchStrategy[tuple[int, ...]]:
    needs_rows = op in (
        "all_gather_into_tensor",
        "coalesced_all_gather",
        "reduce_scatter_tensor",
        "all_to_all_single",
        *FUNCTIONAL_REDUCTIONS,
        *FUNCTIONAL_MOVES,
    )
    some = st.sampled_from([(1,), (3,), (2, 3), (4, 1, 2), (0,), (0, 2)])
    return some if needs_rows else st.one_of(some, st.just(()))


def _counts(members: int) -> st.SearchStrategy[tuple[tuple[int, ...], ...]]:
    row = st.lists(st.integers(0, 3), min_size=members, max_size=members).map(tuple)
    even = st.integers(0, 3).map(lambda n: ((n,) * members,) * members)
    return st.one_of(even, st.lists(row, min_size=members, max_size=members).map(tuple))


# Running one


@dataclass
class _Pending:
    """What a step hands back once its works have been waited for."""

    works: list[Any]
    results: list[Any]
    objects: list[Any] = field(default_factory=list)


def run_programs(ctx: Any) -> list[list[Any]]:
    """A scenario: ``ctx.params["programs"]``, one after the other. What each step left on this rank."""
    groups: dict[tuple[int, ...], Any] = {}
    return [_run(program, number, ctx.rank, groups) for number, program in enumerate(ctx.params["programs"])]


def _run(program: Program, number: int, rank: int, groups: dict[tuple[int, ...], Any]) -> list[Any]:
    for step in program.steps:
        if step.group not in groups:
            groups[step.group] = dist.new_group(list(step.group))
    done = [
        _Rank(step, 1000 * number + at, rank, groups[step.group]).call() if rank in step.group else None
        for at, step in enumerate(program.steps)
    ]
    works = [work for pending in done if pending is not None for work in pending.works]
    turn = program.waits % len(works) if works else 0
    for work in works[turn:] + works[:turn]:
        work.wait()
    return [None if pending is None else _values(pending) for pending in done]


def _values(pending: _Pending) -> list[Any]:
    """Tensors as dtype, shape and bytes."""
    return [*(_value(tensor) for tensor in pending.results), *pending.objects]


def _value(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    memory = tensor.contiguous().view(-1).view(torch.uint8)
    if tensor.dtype is torch.bool:
        memory = memory.ne(0).view(torch.uint8)
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), memory.numpy().tobytes()


class _Rank:
    """One rank's part of one step."""

    def __init__(self, step: Step, seed: int, rank: int, group: Any) -> None:
        self.step = step
        self.group = group
        self.size = len(step.group)
        self.place = step.group.index(rank)
        self.dtype = getattr(torch, step.dtype)
        self.root = step.group[step.root]
        self.op = getattr(dist.ReduceOp, step.reduce_op) if step.reduce_op else None
        self._numbers = torch.Generator().manual_seed(31 * seed + rank)

    def call(self) -> _Pending:
        works, *results = getattr(self, f"_{self.step.op}")()
        return _Pending(
            [work for work in works if work is not None],
            [result for result in results if isinstance(result, torch.Tensor)],
            [result for result in results if not isinstance(result, torch.Tensor)],
        )

    def filled(self, shape: tuple[int, ...]) -> torch.Tensor:
        """This rank's next contents, in a shape. Small enough to multiply."""
        if self.step.fractions and self.dtype.is_floating_point:
            return torch.randn(shape, generator=self._numbers).to(self.dtype)
        numbers = torch.randint(0, 3, shape, generator=self._numbers)
        return (numbers > 0) if self.dtype is torch.bool else numbers.to(self.dtype)

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(shape, dtype=self.dtype)

    def rows(self, count: int) -> tuple[int, ...]:
        return (count, *self.step.shape[1:])

    def _all_reduce(self) -> Any:
        x = self.filled(self.step.shape)
        return [dist.all_reduce(x, self.op, group=self.group, async_op=self.step.is_async)], x

    def _coalesced_all_reduce(self) -> Any:
        tensors = [self.filled(self.step.shape) for _ in range(3)]
        with dist._coalescing_manager(self.group, async_ops=self.step.is_async) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor, self.op, group=self.group)
        return [manager if self.step.is_async else None], *tensors

    def _coalesced_all_gather(self) -> Any:
        outputs = [self.empty(self.rows(self.step.shape[0] * self.size)) for _ in range(2)]
        with dist._coalescing_manager(self.group, async_ops=self.step.is_async) as manager:
            for output in outputs:
                dist.all_gather_into_tensor(output, self.filled(self.step.shape), group=self.group)
        return [manager if self.step.is_async else None], *outputs

    def _reduce(self) -> Any:
        x = self.filled(self.step.shape)
        dist.reduce(x, self.root, self.op, group=self.group)
        # Away from the destination nothing is promised.
        return [None], x if self.place == self.step.root else None

    def _reduce_scatter(self) -> Any:
        parts = [self.filled(self.step.shape) for _ in range(self.size)]
        output = self.empty(self.step.shape)
        work = dist.reduce_scatter(output, parts, self.op, group=self.group, async_op=self.step.is_async)
        return [work], output

    def _reduce_scatter_tensor(self) -> Any:
        output = self.empty(self.step.shape)
        source = self.filled(self.rows(self.step.shape[0] * self.size))
        work = dist.reduce_scatter_tensor(
            output, source, self.op, group=self.group, async_op=self.step.is_async
        )
        return [work], output

    def _broadcast(self) -> Any:
        x = self.filled(self.step.shape)
        return [dist.broadcast(x, self.root, group=self.group, async_op=self.step.is_async)], x

    def _all_gather(self) -> Any:
        outputs = [self.empty(self.step.shape) for _ in range(self.size)]
        x = self.filled(self.step.shape)
        return [dist.all_gather(outputs, x, group=self.group, async_op=self.step.is_async)], *outputs

    def _all_gather_into_tensor(self) -> Any:
        output = self.empty(self.rows(self.step.shape[0] * self.size))
        x = self.filled(self.step.shape)
        return [dist.all_gather_into_tensor(output, x, group=self.group, async_op=self.step.is_async)], output

    def _all_to_all(self) -> Any:
        outputs = [self.empty(self.step.shape) for _ in range(self.size)]
        parts = [self.filled(self.step.shape) for _ in range(self.size)]
        return [dist.all_to_all(outputs, parts, group=self.group, async_op=self.step.is_async)], *outputs

    def _splits(self) -> tuple[list[int], list[int]]:
        sent = list(self.step.counts[self.place])
        return sent, [row[self.place] for row in self.step.counts]

    def _all_to_all_single(self) -> Any:
        sent, received = self._splits()
        output, source = self.empty(self.rows(sum(received))), self.filled(self.rows(sum(sent)))
        is_even = len({count for row in self.step.counts for count in row}) == 1
        splits = () if is_even else (received, sent)
        return [
            dist.all_to_all_single(output, source, *splits, group=self.group, async_op=self.step.is_async)
        ], output

    def _scatter(self) -> Any:
        output = self.empty(self.step.shape)
        parts = [self.filled(self.step.shape) for _ in range(self.size)]
        mine = parts if self.place == self.step.root else None
        return [
            dist.scatter(output, mine, src=self.root, group=self.group, async_op=self.step.is_async)
        ], output

    def _gather(self) -> Any:
        outputs = [self.empty(self.step.shape) for _ in range(self.size)]
        mine = outputs if self.place == self.step.root else None
        x = self.filled(self.step.shape)
        return [dist.gather(x, mine, dst=self.root, group=self.group, async_op=self.step.is_async)], *(
            mine or ()
        )

    def _functional_all_reduce(self) -> Any:
        result = functional.all_reduce(self.filled(self.step.shape), self.step.reduce_op.lower(), self.group)
        return [], functional.wait_tensor(result)

    def _functional_reduce_scatter(self) -> Any:
        source = self.filled(self.rows(self.step.shape[0] * self.size))
        result = functional.reduce_scatter_tensor(source, self.step.reduce_op.lower(), 0, self.group)
        return [], functional.wait_tensor(result)

    def _functional_all_gather(self) -> Any:
        result = functional.all_gather_tensor(self.filled(self.step.shape), 0, self.group)
        return [], functional.wait_tensor(result)

    def _functional_all_to_all(self) -> Any:
        sent, received = self._splits()
        result = functional.all_to_all_single(self.filled(self.rows(sum(sent))), received, sent, self.group)
        return [], functional.wait_tensor(result)

    def _functional_broadcast(self) -> Any:
        # Of all broadcasts only this one takes the source's place in the group.
        result = functional.broadcast(self.filled(self.step.shape), self.step.root, self.group)
        return [], functional.wait_tensor(result)

    def _send_recv(self) -> Any:
        x, tag = self.filled(self.step.shape), self.step.tag
        other = self.step.group[self.step.peer]
        if self.place == self.step.root:
            if self.step.is_async:
                return [dist.isend(x, other, group=self.group, tag=tag)], x
            dist.send(x, other, group=self.group, tag=tag)
        elif self.place == self.step.peer:
            received = self.empty(self.step.shape)
            if self.step.is_async:
                return [dist.irecv(received, self.root, group=self.group, tag=tag)], received
            dist.recv(received, self.root, group=self.group, tag=tag)
            return [], received
        return ([],)

    def _ring(self) -> Any:
        received = self.empty(self.step.shape)
        after = self.step.group[(self.place + 1) % self.size]
        before = self.step.group[self.place - 1]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self.filled(self.step.shape), after, self.group, self.step.tag),
                dist.P2POp(dist.irecv, received, before, self.group, self.step.tag),
            ]
        )
        return works, received

    def _barrier(self) -> Any:
        return [dist.barrier(self.group, async_op=self.step.is_async)], "barrier"

    def _object(self) -> Any:
        return {"place": self.place, "numbers": self.filled((2,)).tolist()}

    def _all_gather_object(self) -> Any:
        found = [None] * self.size
        dist.all_gather_object(found, str(self._object()), group=self.group)
        return [], found

    def _broadcast_object_list(self) -> Any:
        found = [str(self._object())]
        dist.broadcast_object_list(found, self.root, group=self.group)
        return [], found

    def _gather_object(self) -> Any:
        found = [None] * self.size if self.place == self.step.root else None
        dist.gather_object(str(self._object()), found, dst=self.root, group=self.group)
        return [], found

    def _scatter_object_list(self) -> Any:
        found: list[Any] = [None]
        parts = [f"{place}: {self._object()}" for place in range(self.size)]
        mine = parts if self.place == self.step.root else None
        dist.scatter_object_list(found, mine, src=self.root, group=self.group)
        return [], found
