"""What gloo asks of a call's own tensors, checked on the rank that makes it: lists, sizes, dtypes, splits.

Messages name what was given and what would be right; the class of the error is the one that gloo raises.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from meshsim.worlds.calls import Call


def check_arguments(call: Call, size: int) -> None:
    """Raise ``RuntimeError`` for a call that gloo refuses in a group of ``size`` ranks."""
    problem = _dtypes(call)
    check = _CHECKS.get(call.event.op)
    if problem is None and check is not None:
        problem = check(call, size)
    if problem is not None:
        raise RuntimeError(f"{call.event.op} on rank {call.event.rank}: {problem}")


def _dtypes(call: Call) -> str | None:
    dtypes = {tensor.dtype for tensor in (*call.inputs, *call.outputs)}
    if len(dtypes) > 1:
        return f"all tensors of the call must have one dtype, got {', '.join(sorted(map(str, dtypes)))}"
    return None


def _listed(name: str, tensors: list[torch.Tensor], size: int) -> str | None:
    if len(tensors) != size:
        return f"the {name} list needs one tensor for each of {size} ranks, got {len(tensors)}"
    return None


def _shapes(name: str, tensors: list[torch.Tensor], wanted: torch.Size) -> str | None:
    for at, tensor in enumerate(tensors):
        if tensor.shape != wanted:
            return f"{name} {at} must have shape {tuple(wanted)}, got {tuple(tensor.shape)}"
    return None


def _all_gather(call: Call, size: int) -> str | None:
    problem = _listed("output", call.outputs, size * len(call.inputs))
    return problem or _shapes("output", call.outputs, call.inputs[0].shape)


def _all_gather_coalesced(call: Call, size: int) -> str | None:
    return _listed("output", call.outputs, size * len(call.inputs))


def _all_gather_into_tensor(call: Call, size: int) -> str | None:
    for source, output in zip(call.inputs, call.outputs, strict=False):
        wanted = torch.Size((size * source.shape[0], *source.shape[1:])) if source.ndim else source.shape
        problem = _shapes("output", [output], wanted)
        if problem is not None:
            return f"{problem}: {size} inputs of {tuple(source.shape)} in a row"
    return None


def _gather(call: Call, size: int) -> str | None:
    if call.event.root != call.event.rank:
        return None
    problem = _listed("gather", call.outputs, size)
    return problem or _shapes("output", call.outputs, call.inputs[0].shape)


def _scatter(call: Call, size: int) -> str | None:
    if call.event.root != call.event.rank:
        return None
    problem = _listed("scatter", call.inputs, size)
    return problem or _shapes("input", call.inputs, call.outputs[0].shape)


def _reduce_scatter(call: Call, size: int) -> str | None:
    problem = _listed("input", call.inputs, size)
    if problem is not None:
        return problem
    mine = call.inputs[call.event.group.index(call.event.rank)]
    if mine.numel() != call.outputs[0].numel():
        got = call.outputs[0].numel()
        return f"the output needs {mine.numel()} elements, as its part of the input, got {got}"
    return None


def _reduce_scatter_tensor(call: Call, size: int) -> str | None:
    for source, output in zip(call.inputs, call.outputs, strict=False):
        if source.numel() != size * output.numel():
            return (
                f"the input needs {size} x {output.numel()} = {size * output.numel()} elements for an output "
                f"of {output.numel()}, got {source.numel()}"
            )
    return None


def _all_to_all(call: Call, size: int) -> str | None:
    return _listed("input", call.inputs, size) or _listed("output", call.outputs, size)


def _all_to_all_single(call: Call, size: int) -> str | None:
    splits = call.event.splits or ((), ())
    for name, tensor, sizes in (("input", call.inputs[0], splits[0]), ("output", call.outputs[0], splits[1])):
        rows = tensor.shape[0] if tensor.ndim else 1
        if not sizes:
            return f"{rows} rows of the {name} can't be divided among {size} ranks: give split sizes"
        if len(sizes) != size:
            return f"{name} splits need one size for each of {size} ranks, got {len(sizes)}"
        if sum(sizes) != rows:
            return f"{name} splits {list(sizes)} sum to {sum(sizes)}, but the {name} has {rows} rows"
    return None


_CHECKS: dict[str, Callable[[Call, int], str | None]] = {
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor": _all_gather_into_tensor,
    "all_gather_into_tensor_coalesced": _all_gather_into_tensor,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_tensor,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
