"""Seconds of something, on a device that may run behind the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def seconds_of(device: torch.device, action: Callable[[], object], times: int) -> float:
    """The mean time of one of ``times`` calls in a row."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        action()
    synchronize(device)
    return (time.perf_counter() - began) / times
