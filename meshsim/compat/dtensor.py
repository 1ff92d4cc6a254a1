"""``DTensorTestBase`` and ``with_comms``."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshsim.compat.unittest_cases import MultiProcessTestCase

NUM_DEVICES = 4
DEVICE_TYPE = "cpu"


class DTensorTestBase(MultiProcessTestCase):
    """Test methods under ``@with_comms`` run with a process group; others call ``init_pg`` themselves."""

    @property
    def world_size(self) -> int:
        return NUM_DEVICES

    @property
    def device_type(self) -> str:
        return DEVICE_TYPE

    @property
    def backend(self) -> str:
        return "gloo"

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def build_device_mesh(self) -> Any:
        """A 1-D mesh of all ranks."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device_type, (self.world_size,))

    def init_pg(self, eager_init: bool = False, backend: str | None = None, **options: Any) -> None:
        """Start the default process group."""
        import torch.distributed as dist

        dist.init_process_group(
            backend or self.backend,
            world_size=self.world_size,
            rank=self.rank,
            init_method=f"file://{self.file_name}",
        )

    def destroy_pg(self, device_id: int | None = None) -> None:
        """Wait for all ranks, then end the default process group."""
        import torch.distributed as dist

        dist.barrier()
        dist.destroy_process_group()

    def run_subtests(
        self,
        subtest_config: Mapping[str, Sequence[Any]],
        test_fn: Callable[..., Any],
        *arguments: Any,
        **keywords: Any,
    ) -> None:
        """Call ``test_fn`` with every combination of the configuration's values."""
        import torch.distributed as dist

        for values in itertools.product(*subtest_config.values()):
            combination = dict(zip(subtest_config, values, strict=True))
            with self.subTest(**combination):
                test_fn(*arguments, **combination, **keywords)
            dist.barrier()


def with_comms(eager_init: Any = False, backend: str | None = None) -> Any:
    """Decorate a test method: a process group around it. With or without parentheses."""
    if callable(eager_init):
        return with_comms()(eager_init)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(self: DTensorTestBase, *arguments: Any, **keywords: Any) -> None:
            self.init_pg(bool(eager_init), backend)
            function(self, *arguments, **keywords)
            self.destroy_pg()

        return run

    return decorate
