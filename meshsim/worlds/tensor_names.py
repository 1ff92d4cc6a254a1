"""What the scenario calls a tensor: its variables that hold this very tensor when it communicates.

A call's line can't tell ``for t in order: dist.all_reduce(t)`` on one rank from the same line on another,
where ``order`` differs. The variables can: beside ``t`` it is ``a`` here and ``b`` there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch

from meshsim.source import is_user_file

_MOST_FRAMES = 4
_MOST_ENTRIES = 64
_MOST_PARAMETERS = 1024
_MOST_NAMES = 8
_HOLD_NOTHING = frozenset(
    {int, float, bool, str, bytes, type(None), list, tuple, FunctionType, ModuleType, type}
)

_Parameters = list[tuple[str, "ref[torch.nn.Parameter]"]]
_parameters: WeakKeyDictionary[torch.nn.Module, _Parameters] = WeakKeyDictionary()


def names_of(tensor: torch.Tensor, frame: FrameType | None) -> tuple[str, ...]:
    """The variables of the innermost user functions that hold ``tensor``, as ``function:name``.

    Seen are local variables, string keys of dictionaries, attributes of ``self``, and parameters of modules
    and their gradients.
    """
    names: list[str] = []
    frames = 0
    while frame is not None and frames < _MOST_FRAMES and len(names) < _MOST_NAMES:
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED and is_user_file(code.co_filename):
            frames += 1
            names.extend(f"{code.co_name}:{name}" for name in _names_in(frame, tensor))
        frame = frame.f_back
    return tuple(names[:_MOST_NAMES])


def _names_in(frame: FrameType, tensor: torch.Tensor) -> list[str]:
    variables = frame.f_locals
    names: list[str] = []
    try:
        for variable, value in variables.items():
            # pytest's rewritten assertions have variables of their own: @py_assert1.
            if variable[0] in "@.":
                continue
            if value is tensor:
                names.append(variable)
            elif type(value) not in _HOLD_NOTHING:
                names.extend(_names_inside(variable, value, tensor))
    finally:
        # Up to Python 3.12 this is a copy that the frame keeps, and with it every tensor in it. A debugger
        # that is looking at the frame writes the copy back.
        if isinstance(variables, dict) and sys.gettrace() is None:
            variables.clear()
    return names


def _names_inside(variable: str, value: Any, tensor: torch.Tensor) -> list[str]:
    if isinstance(value, torch.Tensor):
        return [f"{variable}.grad"] if _has_gradient(value, tensor) else []
    if type(value) is dict:
        return [f"{variable}[{key!r}]" for key in _keys_of(value, tensor)]
    names = []
    if isinstance(value, torch.nn.Module):
        for name, parameter in _parameters_of(value):
            held = parameter()
            if held is tensor:
                names.append(f"{variable}.{name}")
            elif held is not None and held.grad is tensor:
                names.append(f"{variable}.{name}.grad")
    if variable == "self" and hasattr(value, "__dict__"):
        names.extend(f"self.{key}" for key in _keys_of(vars(value), tensor))
    return names


def _has_gradient(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    # Only a leaf has one, and asking others for it warns.
    return value.requires_grad and value.is_leaf and value.grad is tensor


def _keys_of(values: Mapping[Any, Any], tensor: torch.Tensor) -> Iterator[str]:
    for key, value in islice(values.items(), _MOST_ENTRIES):
        if value is tensor and isinstance(key, str):
            yield key


def _parameters_of(module: torch.nn.Module) -> _Parameters:
    known = _parameters.get(module)
    if known is None:
        named = islice(module.named_parameters(), _MOST_PARAMETERS)
        known = _parameters[module] = [(name, ref(parameter)) for name, parameter in named]
    return known
