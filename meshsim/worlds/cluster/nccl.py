"""NCCL on CUDA devices."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from meshsim import torch_private

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from meshsim.torch_private import Store


class _Nccl:
    name = "nccl"
    device_type = "cuda"
    averages = True
    visible_variable = "CUDA_VISIBLE_DEVICES"
    settings = (
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_DISABLE",
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_P2P_DISABLE",
        "NCCL_NET",
    )
    start_timeout = 300.0

    def problem(self) -> str:
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_nccl_available():
            return f"this torch ({torch.__version__}) was built without NCCL: install its CUDA build"
        if not torch.cuda.is_available():
            visible = os.environ.get(self.visible_variable)
            hint = f"{self.visible_variable}={visible}" if visible is not None else "see nvidia-smi"
            return f"torch sees no CUDA device ({hint})"
        return ""

    def versions(self) -> dict[str, str]:
        import torch

        return {
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
            "CUDA": str(torch.version.cuda),
        }

    def device_count(self) -> int:
        import torch

        return torch.cuda.device_count()

    def describe(self, index: int) -> tuple[str, str]:
        import torch

        properties = torch.cuda.get_device_properties(index)
        return str(properties.name), str(getattr(properties, "uuid", ""))

    def start_group(
        self,
        store: Store,
        group_rank: int,
        *,
        members: tuple[int, ...],
        name: str,
        timeout: timedelta,
        device: torch.device,
        address: str,
        options: Any = None,
    ) -> tuple[dist.ProcessGroup, Any]:
        return torch_private.start_nccl_group(
            store,
            group_rank,
            members=members,
            name=name,
            timeout=timeout,
            device=device,
            options=options,
        )


BACKEND = _Nccl()
