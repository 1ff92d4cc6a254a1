"""Saving and restoring the state of Python's ``random`` at every hand-over, cheaply.

``random.getstate()`` builds a tuple of 625 ints. With a thousand ranks, each at one place in the
interleaving, that is the largest cost of a hand-over. CPython keeps the same 2,500 bytes in the generator
object; they are copied directly where a check at start-up shows that they are what ``getstate`` says, and
``getstate`` is used everywhere else.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

# CPython's RandomObject: the object header, the position (int), then 624 words of state.
_OFFSET = object.__basicsize__
_WORDS = 624
_BYTES = 4 * (1 + _WORDS)


def _shared_generator() -> Any:
    """The generator behind ``random.random()`` and the other module-level functions."""
    return getattr(random.random, "__self__", None)


def _raw(generator: Any) -> bytes:
    return ctypes.string_at(id(generator) + _OFFSET, _BYTES)


def _layout_is_known(generator: Any) -> bool:
    if type(generator) is not random.Random or random.Random.__basicsize__ < _OFFSET + _BYTES:
        return False
    probe = random.Random(12345)
    probe.random()
    _, words, _ = probe.getstate()
    return struct.unpack(f"={1 + _WORDS}I", _raw(probe)) == (words[-1], *words[:-1])


_generator = _shared_generator()
_direct = _layout_is_known(_generator)


def save() -> Any:
    """The state of the module-level generator, for :func:`restore`."""
    # gauss() keeps every second value that it makes.
    return (_raw(_generator), _generator.gauss_next) if _direct else random.getstate()


def restore(state: Any) -> None:
    """Put back what :func:`save` returned."""
    if not _direct:
        random.setstate(state)
        return
    raw, _generator.gauss_next = state
    ctypes.memmove(id(_generator) + _OFFSET, raw, _BYTES)


def fresh(seed: int) -> Any:
    """The state that ``random.seed(seed)`` gives."""
    generator = random.Random(seed)
    return (_raw(generator), None) if _direct else generator.getstate()
