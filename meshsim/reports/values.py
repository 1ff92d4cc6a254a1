"""Any value as JSON: what JSON can't hold is described under a ``"$"`` key, never dropped.

Numbers, text, lists and mappings stay themselves. A tensor becomes its digest, dtype, shape and statistics,
a number that JSON has no word for (nan, inf) its text, every other object its class and ``repr``.
"""

from __future__ import annotations

import enum
import hashlib
import math
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

_DEEPEST = 40


def to_json_value(value: Any, depth: int = 0) -> Any:
    """``value`` as dicts with text keys, lists, text, whole and finite numbers, booleans and None."""
    if value is None or (isinstance(value, bool | str) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return to_json_value(value.value, depth + 1)
    if type(value) is int:
        return value
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"$": "float", "value": str(number)}
    if depth > _DEEPEST:
        return _described(value)
    return _container(value, depth + 1)


def _container(value: Any, depth: int) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if type(value) in (list, tuple):
        return [to_json_value(item, depth) for item in value]
    if isinstance(value, set | frozenset):
        return {"$": "set", "items": sorted((to_json_value(item, depth) for item in value), key=repr)}
    if is_dataclass(value) and not isinstance(value, type):
        named = {
            field.name: to_json_value(getattr(value, field.name, None), depth) for field in fields(value)
        }
        return {"$": "dataclass", "type": _class_name(value), "fields": named}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return to_json_value(value.item(), depth)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _array(value)
    return _described(value)


def _mapping(value: Mapping[Any, Any], depth: int) -> Any:
    items = [(key, to_json_value(item, depth)) for key, item in value.items()]
    if all(isinstance(key, str) and key != "$" for key, _ in items):
        return {str(key): item for key, item in items}
    return {"$": "mapping", "items": [[to_json_value(key, depth), item] for key, item in items]}


def _tensor(tensor: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "$": "tensor",
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": [int(size) for size in tensor.shape],
        "device": str(tensor.device),
    }
    try:
        described.update(_contents(tensor))
    except Exception as error:  # noqa: BLE001 - tensor subclasses may refuse any operation; the report must not
        described["unreadable"] = f"{type(error).__name__}: {error}"
    return described


def _contents(tensor: Any) -> dict[str, Any]:
    torch = sys.modules["torch"]
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:  # a DTensor: its groups are gone by now, its own part is still here
        return {"placements": [str(placement) for placement in tensor.placements], "local": _tensor(local)}
    plain = tensor.detach().to("cpu").resolve_conj().resolve_neg().reshape(-1).contiguous()
    data = plain.view(torch.uint8).numpy().tobytes()
    return {"digest": _digest(data), "statistics": _statistics(plain)}


def _statistics(flat: Any) -> dict[str, Any]:
    if flat.numel() == 0:
        return {}
    if flat.is_complex():
        return {"norm": to_json_value(flat.abs().double().norm().item())}
    numbers = flat.double()
    found = {
        "min": numbers.min(),
        "max": numbers.max(),
        "mean": numbers.mean(),
        "norm": numbers.norm(),
        "projection": numbers.dot(_weights(numbers.numel())) / numbers.numel(),
    }
    return {name: to_json_value(number.item()) for name, number in found.items()}


def _weights(count: int) -> Any:
    """A weight from -1 to 1 for each place: elements that changed places change the projection."""
    torch = sys.modules["torch"]
    places = torch.arange(count, dtype=torch.int64, device="cpu")
    return ((places * 2654435761) % 2**32).double() / 2**31 - 1


def _array(array: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "$": "array",
        "dtype": str(array.dtype),
        "shape": [int(size) for size in array.shape],
    }
    if array.dtype.hasobject:
        return {**described, "repr": _safe_repr(array)}
    return {**described, "digest": _digest(array.tobytes())}


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _described(value: Any) -> dict[str, Any]:
    return {"$": "object", "type": _class_name(value), "repr": _safe_repr(value)}


def _class_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a report must survive any object's repr
        return f"<{_class_name(value)}: repr raised {type(error).__name__}>"
