"""Coverage of what runs in a worker process, where pytest-cov or ``coverage run`` measures the parent."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CoverageSettings:
    """What the parent's coverage was started with."""

    data_file: str
    config_file: str | None
    source: tuple[str, ...] | None
    include: tuple[str, ...] | None
    omit: tuple[str, ...] | None
    branch: bool


def coverage_settings() -> CoverageSettings | None:
    """Those of the coverage that measures this process; None where none does."""
    module = sys.modules.get("coverage")
    current: Any = module.Coverage.current() if module is not None else None
    if current is None:
        return None
    config = current.config
    return CoverageSettings(
        data_file=os.path.abspath(config.data_file),
        config_file=config.config_file,
        source=_tuple(config.source),
        include=_tuple(config.run_include),
        omit=_tuple(config.run_omit),
        branch=bool(config.branch),
    )


def _tuple(values: Any) -> tuple[str, ...] | None:
    return tuple(values) if values else None


class MeasuredRank:
    """Between ``start`` and ``stop`` the lines that run here are counted, into a data file of its own."""

    def __init__(self, settings: CoverageSettings | None, parent: int) -> None:
        self._settings = settings if parent != os.getpid() else None
        self._coverage: Any = None

    def start(self) -> None:
        if self._settings is None:
            return
        import coverage

        given = self._settings
        self._coverage = coverage.Coverage(
            data_file=given.data_file,
            data_suffix=True,
            config_file=given.config_file if given.config_file is not None else False,
            source=given.source,
            include=None if given.source else given.include,
            omit=given.omit,
            branch=given.branch,
        )
        self._coverage.start()

    def stop(self) -> None:
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage.save()
            self._coverage = None
