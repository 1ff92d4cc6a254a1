"""What a rank hands back, and rebuilding it in the parent."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import cloudpickle

from meshsim.errors import MeshsimError
from meshsim.worlds.gloo.arriving import number_of
from meshsim.worlds.gloo.unsendable import blame

_sent_classes: ContextVar[Mapping[int, type]] = ContextVar("sent_classes")


class CannotReturn(MeshsimError):
    """A rank's return value can't leave its process."""


class _ReturnPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Classes that the parent sent go back by number, so that the parent gets instances of its own class."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type):
            number = number_of(obj)
            if number is not None:
                return sent_class, (number,)
        return super().reducer_override(obj)


def sent_class(number: int) -> type:
    return _sent_classes.get()[number]


def _pack(value: Any) -> bytes:
    file = io.BytesIO()
    _ReturnPickler(file).dump(value)
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
        data = _pack(error)
    except Exception:  # noqa: BLE001 - any refusal counts
        return b""
    return data


@contextlib.contextmanager
def known_classes(classes: Mapping[int, type]) -> Iterator[None]:
    """Inside, what came back from workers can be unpacked."""
    token = _sent_classes.set(classes)
    try:
        yield
    finally:
        _sent_classes.reset(token)


def unpack(data: bytes) -> Any:
    """Rebuild what :func:`pack_value` packed."""
    return pickle.loads(data)
