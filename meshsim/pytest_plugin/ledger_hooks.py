"""Keeping a session's ledger: what was collected, what ran, and over xdist's workers."""

from __future__ import annotations

from typing import Any

import pytest

from meshsim.pytest_plugin.collecting import MeshTest, mesh_test
from meshsim.pytest_plugin.ledger import DESELECTED, NOT_REACHED, Key, Ledger, write_ledger
from meshsim.pytest_plugin.options import MeshOptions

_OUTPUT = "meshsim_ledger"


class LedgerKeeper:
    """The part of the plugin that keeps the ledger."""

    def __init__(self, options: MeshOptions) -> None:
        self._options = options
        self._ledger = Ledger()
        self._deselected: set[Key] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            test = mesh_test(item)
            if test is not None:
                self._ledger.note(self._key(item, test), NOT_REACHED)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = mesh_test(item)
            if test is not None:
                self._deselected.add(self._key(item, test))
                self._ledger.note(self._key(item, test), DESELECTED)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report: pytest.TestReport = yield
        test = mesh_test(item)
        if test is not None and (report.when == "call" or not report.passed):
            self._ledger.note(self._key(item, test), _status(report))
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._ledger.merge(getattr(node, "workeroutput", {}).get(_OUTPUT, ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT] = self._ledger.to_json()
            return
        if self._options.ledger is not None:
            write_ledger(self._options.ledger, self._ledger)
        vanished = [key for key, reason in self._ledger.never_ran().items() if reason != DESELECTED]
        if vanished and self._options.strict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        # What -k and -m leave out is left out on purpose.
        lines = self._ledger.lines(besides=(DESELECTED,))
        if lines and not terminalreporter.config.getoption("collectonly", False):
            terminalreporter.section("mesh tests that never ran")
            for line in lines:
                terminalreporter.write_line(line)

    def _key(self, item: pytest.Item, test: MeshTest) -> Key:
        backend = self._options.backend or test.settings.get("backend") or "auto"
        return Key(item.nodeid, test.case.topology or "drawn", str(backend))


def _status(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "passed"
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return reason.removeprefix("Skipped: ") or "skipped"
    return str(report.outcome)
