"""What a rank hands in to rank 0: pickled by name where the program's own modules have it, else by value."""

from __future__ import annotations

import io
import pickle
from typing import Any

import cloudpickle
import torch

from meshsim.worlds.gloo.returning import CannotReturn
from meshsim.worlds.gloo.unsendable import blame


def _reduce_tensor(value: Any) -> Any:
    """Tensors travel on CPU: rank 0 may not have the device, and must not fill its own."""
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return NotImplemented
    if isinstance(value, torch.nn.Parameter) or hasattr(value, "_local_tensor"):
        return NotImplemented  # made of plain tensors, which are met in their turn
    return value.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


class _ByName(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return _reduce_tensor(obj)


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce_tensor(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _pack(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        _ByName(file, pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:  # noqa: BLE001 - any refusal: local classes, lambdas
        file = io.BytesIO()
        _ByValue(file).dump(value)
    return file.getvalue()


def _can_be_packed(value: Any) -> bool:
    try:
        _pack(value)
    except Exception:  # noqa: BLE001 - any refusal counts
        return False
    return True


def pack_value(value: Any) -> bytes:
    """Pickle a return value; CannotReturn names what can't be pickled."""
    try:
        return _pack(value)
    except Exception as error:  # noqa: BLE001 - any refusal counts
        reason = blame({"its return value": value}, _can_be_packed, error)
        raise CannotReturn(f"a rank must return something that can be pickled: {reason}") from None


def pack_exception(error: BaseException) -> bytes:
    """Pickle an exception, or nothing where that can't be done; its text has gone another way."""
    try:
        return _pack(error)
    except Exception:  # noqa: BLE001 - any refusal counts
        return b""


def unpack(data: bytes) -> Any:
    return pickle.loads(data)
