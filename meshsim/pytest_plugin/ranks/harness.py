"""What stands around a test's body on one rank."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Any

from meshsim.context import RankContext
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.ranks.logs import RankLogs
from meshsim.pytest_plugin.ranks.measured import MeasuredRank
from meshsim.pytest_plugin.ranks.outcome import RankKind, RankOutcome, SubtestOutcome
from meshsim.pytest_plugin.ranks.settings import RankSettings
from meshsim.pytest_plugin.ranks.values import Resolved
from meshsim.pytest_plugin.ranks.warned import RankWarnings


class RankHarness:
    """Keeps a rank's logs, warnings and recorded properties; entered around the body."""

    def __init__(self, context: RankContext, settings: RankSettings) -> None:
        self.context = context
        self.settings = settings
        self.values: Resolved | None = None
        self.recorded: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.subtests: list[SubtestOutcome] = []
        self._logs = RankLogs(settings)
        self._warnings = RankWarnings(settings)
        self._measured = MeasuredRank(settings.coverage, settings.in_process)
        self._group: Any = None

    def __enter__(self) -> RankHarness:
        import torch.distributed as dist

        self._group = dist.group.WORLD
        self._logs.start()
        self._warnings.start()
        self._measured.start()
        self._token = _here.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._measured.stop()
        _here.reset(self._token)
        self._warnings.stop()
        self._logs.stop()

    def check_process_group(self) -> None:
        """Fails the test where the body leaves a default process group that it didn't find."""
        import torch.distributed as dist

        if dist.is_initialized() and dist.group.WORLD is not self._group:
            raise pytest_private.outcomes.Failed(
                "left a process group: the test started a default process group of its own; end it with "
                "torch.distributed.destroy_process_group() before the test returns",
                pytrace=False,
            )

    def logs(self) -> str:
        """What the rank has logged so far."""
        return self._logs.text()

    def outcome(self, kind: RankKind) -> RankOutcome:
        """The rank's account, once the body has ended."""
        return RankOutcome(
            kind,
            logs=self.logs(),
            warnings=self._warnings.given(),
            recorded=self.recorded,
            subtests=self.subtests,
        )


_here: ContextVar[RankHarness] = ContextVar("harness")


def here() -> RankHarness:
    """The harness of the rank that runs here."""
    return _here.get()
