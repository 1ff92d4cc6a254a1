"""For tests that call ``init_process_group`` themselves: the call gives them the world's own group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from meshsim.context import RankContext
from meshsim.pytest_plugin.ranks.patch import RankPatch
from meshsim.torch_private import C10dWorld

_POSITIONS = ("backend", "init_method", "timeout", "world_size", "rank")


class HiddenGroup(RankPatch):
    """From ``start`` on the rank has no default process group, until it calls ``init_process_group``.

    Store, init method and timeout of that call don't matter: the ranks have met already. A call for another
    number of ranks, or a second one, is torch's own.
    """

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._kept = C10dWorld()
        self._given = False
        self._real: Any = None

    def start(self) -> None:
        self._kept.capture()
        C10dWorld().install()
        super().start()

    def stop(self) -> None:
        was_on = self.is_on
        super().stop()
        if was_on and not self._given and not dist.is_initialized():
            self._kept.install()

    def apply(self) -> None:
        self._real = dist.init_process_group
        for module in (dist, c10d):
            vars(module)["init_process_group"] = self._init

    def remove(self) -> None:
        for module in (dist, c10d):
            vars(module)["init_process_group"] = self._real

    def _init(self, *arguments: Any, **keywords: Any) -> None:
        named = dict(
            zip(("backend", "init_method", "timeout", "world_size", "rank"), arguments, strict=False)
        )
        asked = {**named, **keywords}
        size, rank = asked.get("world_size", -1), asked.get("rank", -1)
        own = size in (-1, None, self._context.world_size) and rank in (-1, None, self._context.rank)
        if self._given or not own or dist.is_initialized():
            self._real(*arguments, **keywords)
            return
        self._given = True
        self._kept.install()
