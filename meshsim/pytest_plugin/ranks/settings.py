"""What a rank needs to know of the pytest run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshsim.pytest_plugin.ranks.measured import CoverageSettings


@dataclass(frozen=True)
class RankSettings:
    """Taken from the test's item and pytest's configuration; can be pickled."""

    nodeid: str
    name: str
    function_file: str
    function_line: int
    """Of the test function, in the file; from 0 on. Frames above it are the harness's."""
    rewritten: Mapping[str, str] = field(default_factory=dict)
    """Modules whose assertions pytest has rewritten, with their files."""
    style: str = "auto"
    show_locals: bool = False
    full_trace: bool = False
    verbosity: int = 0
    assertion_verbosity: int = 0
    ini: Mapping[str, Any] = field(default_factory=dict)
    invocation_dir: str = ""
    log_level: int | None = None
    log_format: str = ""
    log_date_format: str = ""
    warning_filters: tuple[Any, ...] = ()
    coverage: CoverageSettings | None = None
    in_process: int = 0
    """The process that pytest runs in. A rank there finds pytest's own state in place."""
