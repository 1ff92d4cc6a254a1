"""The HTML page about a session's runs: handed to ``meshsim.reports``, which makes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from meshsim.result import RunResult

_MODULE = "meshsim.reports.html_page"


def _writer() -> Callable[[str, Sequence[Any]], None] | None:
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError as error:
        if error.name != _MODULE:
            raise
        return None
    writer: Callable[[str, Sequence[Any]], None] = module.write_html
    return writer


def check_html_reports() -> None:
    """``pytest.UsageError`` where this version of meshsim can't write the page."""
    if _writer() is None:
        raise pytest.UsageError(
            "--mesh-report: this version of meshsim has no HTML page yet; use --mesh-record DIR for the "
            "results as JSON, or --junit-xml FILE"
        )


def write_html_report(path: str, results: Sequence[RunResult]) -> None:
    """Write the page about ``results``."""
    writer = _writer()
    if writer is not None:
        writer(path, results)
