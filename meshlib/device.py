"""Choosing this process's accelerator before its groups are made."""

from __future__ import annotations

import os

import torch


def set_device(device_type: str) -> None:
    """Select the accelerator ``LOCAL_RANK``, as torch's meshes do, unless the program has chosen one
    already.
    """
    module = getattr(torch, device_type, None)
    local_rank = os.environ.get("LOCAL_RANK")
    if local_rank is None or module is None or not hasattr(module, "set_device") or device_type == "cpu":
        return
    if not module.is_initialized() and module.device_count() > 0:
        module.set_device(int(local_rank) % module.device_count())
