"""Hiding the variables that a launcher would set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@contextmanager
def without_rank_environment(hide: bool) -> Iterator[None]:
    """Inside, with ``hide``, the rank has none of them. Each rank's environment is its own."""
    hidden = {name: os.environ.pop(name) for name in _NAMES if hide and name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
