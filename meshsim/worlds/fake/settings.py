"""Torch's settings that hold for a whole process: each rank's own, and the caller's put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Settings = tuple[Any, ...]


def current() -> Settings:
    return (
        torch.get_default_dtype(),
        (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        torch.get_float32_matmul_precision(),
        torch.is_warn_always_enabled(),
        (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        torch.get_num_threads(),
    )


def fresh() -> Settings:
    """What a new process starts with, but for threads: a rank computes in one."""
    return (torch.float32, (False, False), "highest", False, (False, True), 1)


def _set_deterministic(wanted: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


def _set_anomaly(wanted: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*wanted)


_SETTERS: tuple[Callable[[Any], object], ...] = (
    torch.set_default_dtype,
    _set_deterministic,
    torch.set_float32_matmul_precision,
    torch.set_warn_always,
    _set_anomaly,
    torch.set_num_threads,
)


def install(wanted: Settings, before: Settings) -> None:
    """Go from one to the other; what doesn't differ isn't touched."""
    if wanted is before or wanted == before:
        return
    for setter, new, old in zip(_SETTERS, wanted, before, strict=True):
        if new != old:
            setter(new)
