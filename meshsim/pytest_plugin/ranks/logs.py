"""What a rank logs, apart from what the other ranks log."""

from __future__ import annotations

import logging
import os

from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.ranks.patch import RankPatch
from meshsim.pytest_plugin.ranks.settings import RankSettings


class RankHandler(RankPatch):
    """A handler on the root logger that is there only while its rank runs."""

    def __init__(self, handler: logging.Handler) -> None:
        self.handler = handler

    def apply(self) -> None:
        logging.getLogger().addHandler(self.handler)

    def remove(self) -> None:
        logging.getLogger().removeHandler(self.handler)


class RankLogs(RankHandler):
    """All that a rank logs, formatted as pytest is told to."""

    def __init__(self, settings: RankSettings) -> None:
        handler = pytest_private.LogCaptureHandler()
        handler.setFormatter(pytest_private.log_formatter(settings.log_format, settings.log_date_format))
        if settings.log_level is not None:
            handler.setLevel(settings.log_level)
            if settings.in_process != os.getpid():
                root = logging.getLogger()
                # A worker puts the level back by itself when the run is over.
                root.setLevel(min(root.level, settings.log_level))
        super().__init__(handler)
        self._stream = handler.stream

    def text(self) -> str:
        return self._stream.getvalue()
