"""All that is special to HCCL on Ascend devices, which torch_npu brings.

Never run on Ascend hardware: tested against a stand-in ``torch_npu`` (``tests/meshsim/cluster``).
One process uses one NPU. torch_npu registers the backend ``hccl`` with c10d when it is imported.
"""

from __future__ import annotations

import importlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from meshsim import torch_private

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from meshsim.torch_private import Store

_RANK_TABLE = "RANK_TABLE_FILE"


class _Hccl:
    name = "hccl"
    device_type = "npu"
    averages = False
    """torch_npu makes AVG of SUM and a division itself; done here it needs no AVG of the backend."""
    visible_variable = "ASCEND_RT_VISIBLE_DEVICES"
    settings = (
        _RANK_TABLE,
        "HCCL_CONNECT_TIMEOUT",
        "HCCL_EXEC_TIMEOUT",
        "HCCL_BUFFSIZE",
        "HCCL_SOCKET_IFNAME",
        "HCCL_DETERMINISTIC",
    )
    start_timeout = 300.0

    def problem(self) -> str:
        try:
            npu = importlib.import_module("torch_npu").npu
        except ImportError as error:
            if error.name == "torch_npu":
                return "torch_npu is not installed"
            return f"torch_npu can't be imported: {error}"
        if not torch_private.has_registered_backend("hccl"):
            return f"torch_npu {self.versions()['torch_npu']} registers no hccl backend with torch"
        if not npu.is_available():
            visible = os.environ.get(self.visible_variable)
            hint = f"{self.visible_variable}={visible}" if visible is not None else "see npu-smi info"
            return f"torch_npu sees no NPU ({hint})"
        table = os.environ.get(_RANK_TABLE)
        if table and not os.path.isfile(table):
            return f"{_RANK_TABLE}={table}: there is no such file"
        return ""

    def versions(self) -> dict[str, str]:
        torch_npu = importlib.import_module("torch_npu")
        cann = getattr(getattr(torch_npu, "version", None), "cann", None)
        return {
            "torch_npu": str(getattr(torch_npu, "__version__", "unknown")),
            **({"CANN": str(cann)} if cann else {}),
        }

    def device_count(self) -> int:
        return int(importlib.import_module("torch_npu").npu.device_count())

    def describe(self, index: int) -> tuple[str, str]:
        return str(importlib.import_module("torch_npu").npu.get_device_name(index)), ""

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
        return torch_private.start_registered_group(
            "hccl",
            store,
            group_rank,
            members=members,
            name=name,
            timeout=timeout,
            device=device,
            options=options,
        )


BACKEND = _Hccl()
