"""The HTML page about a session's runs: ``meshsim.reports`` makes it, of the runs of xdist's workers too."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from meshsim.errors import UsageError

if TYPE_CHECKING:
    from meshsim.reports.html import PageRun
    from meshsim.result import RunResult

_OUTPUT = "meshsim_page"


def check_html_report(path: str) -> None:
    """``pytest.UsageError`` where the page can't be written."""
    from meshsim.reports.files import check_writable

    try:
        check_writable(path)
    except UsageError as error:
        raise pytest.UsageError(f"--mesh-report: {error}") from None


class HtmlReport:
    """The part of the plugin that writes the page: on a worker of xdist it hands the runs in instead.

    ``results`` is the session's list, which grows while the tests run.
    """

    def __init__(self, path: str, results: list[RunResult]) -> None:
        self._path = path
        self._results = results
        self._handed_in: list[PageRun] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        from meshsim.reports.html import PageRun

        output = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if output is not None:
            self._handed_in += [PageRun(**run) for run in json.loads(output)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from meshsim.reports.html import run_data, write_html

        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = json.dumps([asdict(run_data(result)) for result in self._results])
            return
        write_html(self._path, [*self._results, *self._handed_in])
