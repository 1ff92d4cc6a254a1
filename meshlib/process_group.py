"""Whether there is a process group, without importing torch to find out."""

from __future__ import annotations

import sys

_DEVICES = {"nccl": "cuda", "hccl": "npu", "xccl": "xpu"}


def has_process_group() -> bool:
    """Whether torch's default process group is up. Where torch hasn't been imported it isn't."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def default_device_type() -> str:
    """The device type that goes with the default process group's backend; ``cpu`` where there is none."""
    if not has_process_group():
        return "cpu"
    import torch.distributed as dist

    backend = str(dist.get_backend()).lower()
    return next((device for name, device in _DEVICES.items() if name in backend), "cpu")
