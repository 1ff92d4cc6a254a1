"""What each backend can do: operation by dtype by reduce op, and what it refuses besides.

gloo as measured with torch 2.13 on CPU; NCCL and HCCL as read in their sources, torch's and torch_npu's
(float8 on NCCL from 2.24 on).
Names are those of the trace: ``all_reduce``, ``reduce_scatter_tensor``; ``float32``; ``SUM``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshsim.checker.compare import P2P_OPS, RECV_OPS, SEND_OPS, is_reduction, only_name_matters
from meshsim.trace import TraceEvent

FLOATS = ("float32", "float64", "float16", "bfloat16")
FLOAT8S = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
INTEGERS = ("int8", "uint8", "int32", "int64")
BOOL = ("bool",)
COMPLEX = ("complex64", "complex128")
OTHER_INTEGERS = ("int16", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, *BOOL, *COMPLEX, *OTHER_INTEGERS, *FLOAT8S)
"""Every dtype that the tables know."""

REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
BACKENDS = ("gloo", "nccl", "hccl")

_NAMES = {"gloo": "gloo", "nccl": "NCCL", "hccl": "HCCL"}
_BITWISE = ("BAND", "BOR", "BXOR")
_ORDERED = ("PRODUCT", "MIN", "MAX")

_NCCL_REAL = (*FLOATS, *FLOAT8S[:2], *INTEGERS)
_HCCL_REDUCED = ("float16", "bfloat16", "float32", "int8", "int16", "int32", "int64")
# torch_npu casts these two to int32 around all_reduce, and around nothing else.
_HCCL_CAST_IN_ALL_REDUCE = ("uint8", "bool")

_REDUCTIONS: dict[str, dict[str, frozenset[str]]] = {
    "gloo": {
        "SUM": frozenset((*FLOATS, *INTEGERS, *BOOL, *COMPLEX)),
        "AVG": frozenset((*FLOATS, *COMPLEX)),
        **{op: frozenset((*FLOATS, *INTEGERS, *BOOL)) for op in _ORDERED},
        **{op: frozenset((*INTEGERS, *BOOL)) for op in _BITWISE},
        "PREMUL_SUM": frozenset(),
    },
    "nccl": {
        "SUM": frozenset((*_NCCL_REAL, *BOOL, *COMPLEX)),
        "AVG": frozenset((*_NCCL_REAL, *COMPLEX)),
        **{op: frozenset((*_NCCL_REAL, *BOOL)) for op in _ORDERED},
        **{op: frozenset() for op in _BITWISE},
        "PREMUL_SUM": frozenset(FLOATS),
    },
    "hccl": {
        **{op: frozenset(_HCCL_REDUCED) for op in ("SUM", "AVG", *_ORDERED)},
        **{op: frozenset() for op in _BITWISE},
        "PREMUL_SUM": frozenset(("float16", "bfloat16", "float32")),
    },
}

_MOVED: dict[str, frozenset[str]] = {
    "gloo": frozenset((*FLOATS, *INTEGERS, *BOOL, *COMPLEX)),
    "nccl": frozenset((*_NCCL_REAL, *BOOL, *COMPLEX)),
    "hccl": frozenset((*FLOATS, *FLOAT8S[:2], *INTEGERS, "int16", *BOOL)),
}

_WHY = {
    ("gloo", "PREMUL_SUM"): "scale before the call and use SUM",
    ("gloo", "AVG"): "use SUM and divide",
    ("nccl", "AVG"): "use SUM and divide",
    ("nccl", "bitwise"): "gather and combine",
    ("hccl", "bitwise"): "gather and combine",
}


@dataclass(frozen=True)
class CallFacts:
    """What of a call decides whether a backend can do it.

    ``ndim`` is that of the tensors handed in, the least if they differ; None if there are none. ``device`` is
    the tensors' device type, empty for the backend's own.
    """

    op: str
    dtype: str = ""
    reduce_op: str = ""
    contiguous: bool = True
    ndim: int | None = 1
    device: str = ""
    any_source: bool = False
    sparse: bool = False
    to_self: bool = False
    even: bool = True
    """Whether all tensors of a list have the same number of elements."""
    bound_device: bool = False
    """Of ``split_group``: whether the default group is bound to a device."""


def facts_of(event: TraceEvent) -> CallFacts:
    """What a trace tells of a call; the tensors' layout and device aren't in it."""
    return CallFacts(
        op=event.op,
        dtype=event.dtype,
        reduce_op=event.reduce_op,
        ndim=min(map(len, event.shapes)) if event.shapes else None,
        any_source=event.op in RECV_OPS and event.peer is None,
        to_self=event.op in SEND_OPS and event.peer == event.rank,
        even=event.op != "all_to_all" or len(set(map(prod, event.shapes))) <= 1,
    )


def unsupported(call: TraceEvent | CallFacts, backend: str) -> str | None:
    """Why a backend can't do a call, in one line with the way out; None if it can.

    ``backend`` is ``gloo``, ``nccl`` or ``hccl`` (``fake`` answers as gloo); another one is a ``KeyError``.
    """
    facts = facts_of(call) if isinstance(call, TraceEvent) else call
    backend = "gloo" if backend == "fake" else backend
    return (
        _wrong_place(facts, backend)
        or _wrong_operation(facts, backend)
        or _wrong_layout(facts, backend)
        or _wrong_dtype(facts, backend)
    )


def supported_dtypes(op: str, backend: str, reduce_op: str = "SUM") -> frozenset[str]:
    """The dtypes with which a backend can do an operation."""
    if is_reduction(op):
        dtypes = _REDUCTIONS[backend].get(reduce_op, frozenset())
        if backend == "hccl" and op.startswith("all_reduce") and reduce_op in ("SUM", *_ORDERED):
            dtypes |= frozenset(_HCCL_CAST_IN_ALL_REDUCE)
        return dtypes
    if backend == "gloo" and op in P2P_OPS:
        return frozenset(DTYPES)
    if backend == "gloo" and op == "gather":
        return _MOVED["gloo"] - frozenset(COMPLEX)
    return _MOVED[backend]


def _wrong_place(facts: CallFacts, backend: str) -> str | None:
    name = _NAMES[backend]
    own = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}[backend]
    if backend != "gloo" and "object" in facts.op:
        return (
            f"{name} can't {facts.op}: the group has no backend for device cpu; use cpu:gloo,{own}:{backend}"
        )
    if facts.device and facts.device != own:
        return f"{name} has no backend for device {facts.device}: move the tensor to {own}"
    return None


def _wrong_operation(facts: CallFacts, backend: str) -> str | None:
    name = _NAMES[backend]
    if facts.to_self:
        return f"{name} can't send to the rank itself: copy instead"
    if backend == "gloo":
        if facts.op == "split_group" and not facts.bound_device:
            return "gloo can't split_group without a bound device: use new_group"
        return None
    if facts.any_source:
        return f"{name} can't receive from any source: name the source"
    if backend == "hccl" and facts.op == "gather":
        return "HCCL refuses gather unless its compatibility variable is set: use all_gather"
    if facts.op == "monitored_barrier":
        return f"{name} has no monitored_barrier, only gloo has: use barrier"
    return None


def _wrong_layout(facts: CallFacts, backend: str) -> str | None:
    name = _NAMES[backend]
    if facts.sparse and (backend != "gloo" or not facts.op.startswith("all_reduce")):
        return f"{name} can't {facts.op} sparse tensors: use to_dense()"
    if not facts.contiguous and (backend != "gloo" or facts.op in (*SEND_OPS, "all_to_all_single")):
        return f"{name} refuses non-contiguous tensors in {facts.op}: use contiguous()"
    if facts.ndim == 0 and backend == "gloo" and facts.op == "all_gather_into_tensor":
        return "gloo can't all_gather_into_tensor a 0-dim tensor: use reshape(1)"
    if facts.ndim == 0 and backend == "hccl" and facts.op == "all_to_all":
        return "HCCL refuses 0-dim tensors in all_to_all: use reshape(1)"
    if not facts.even and backend == "gloo" and facts.op in ("all_gather", "all_to_all"):
        return (
            f"gloo can't {facts.op} a list of uneven tensors: pad them, or use all_to_all_single with splits"
        )
    return None


def _wrong_dtype(facts: CallFacts, backend: str) -> str | None:
    if not facts.dtype or only_name_matters(facts.op):
        return None
    name, reduces = _NAMES[backend], is_reduction(facts.op)
    known = supported_dtypes(facts.op, backend, facts.reduce_op or "SUM")
    if facts.dtype in known:
        return None
    what = f"{facts.op} with {facts.reduce_op}" if reduces and facts.reduce_op else facts.op
    kind = "bitwise" if facts.reduce_op in _BITWISE else facts.reduce_op
    hint = _WHY.get((backend, kind), "") if reduces else ""
    if not known:
        return f"{name} has no {what}" + (f": {hint}" if hint else "")
    if not hint:
        hint = f"it takes {', '.join(dtype for dtype in DTYPES if dtype in known)}"
    if backend == "hccl" and facts.dtype == "float64" and reduces:
        return f"HCCL has {what} of float64 on its newest chips only: use float32"
    return f"{name} has no {what} of {facts.dtype}: {hint}"


def capability_table(backend: str) -> str:
    """One backend's dtypes by operation, for the docs, as Markdown."""
    columns = DTYPES
    rows = [("all_reduce", op) for op in REDUCE_OPS]
    rows += [("reduce_scatter", op) for op in REDUCE_OPS] if backend == "hccl" else []
    rows += [(op, "") for op in ("broadcast", "all_gather", "all_to_all", "scatter", "gather", "send")]
    lines = [f"| {_NAMES[backend]} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for op, reduce_op in rows:
        cells = (
            "no" if unsupported(CallFacts(op, dtype, reduce_op), backend) else "yes" for dtype in columns
        )
        lines.append(f"| {f'{op} {reduce_op}'.strip()} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
