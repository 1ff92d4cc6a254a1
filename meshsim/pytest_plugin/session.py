"""One pytest session's mesh tests: runs them, and turns each run into one report."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshsim.errors import CannotRun, UsageError
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.collecting import PROBLEM_KEY, Collection, MeshTest, marked_lambda, mesh_test
from meshsim.pytest_plugin.current import CurrentOptions, session_begins, session_ends
from meshsim.pytest_plugin.options import MeshOptions
from meshsim.pytest_plugin.property_tests import is_property_test, run_examples

if TYPE_CHECKING:
    from meshsim.pytest_plugin.outcomes import Case
    from meshsim.pytest_plugin.running import Ran
    from meshsim.result import RunResult

RESULT_KEY = pytest.StashKey["RunResult"]()
"""The result of an item's run."""
WARNED_KEY = pytest.StashKey[set[Any]]()
"""Warnings that the item's report has already, where its body runs several times."""
CANNOT_RUN_KEY = pytest.StashKey[str]()
"""Why an item can't run here, where that is to be a failure."""
BACKEND_KEY = pytest.StashKey[str]()
"""The backend that an item runs on."""


class MeshSession:
    """The plugin object of a session."""

    def __init__(self, options: MeshOptions) -> None:
        self.options = options
        self.collection = Collection(options)
        self.results: list[RunResult] = []
        self._current = CurrentOptions(options.backend, options.seed, options.timeout, self.results)
        session_begins(self._current)

    def pytest_unconfigure(self) -> None:
        session_ends(self._current)

    # Collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        self.collection.parametrize(metafunc)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str, obj: object) -> Any:
        if not isinstance(obj, pytest.MarkDecorator):
            return None
        function = marked_lambda(collector, name, obj)
        if function is None:
            return None
        return collector.ihook.pytest_pycollect_makeitem(collector=collector, name=name, obj=function)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.collection.note(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Start-up is not to be charged to the first test."""
        tests = [test for item in session.items if (test := mesh_test(item)) is not None]
        if not tests or session.config.option.collectonly:
            return
        from meshsim.pytest_plugin.junit_so_far import JunitSoFar
        from meshsim.pytest_plugin.running import start_up

        if not session.config.pluginmanager.has_plugin("meshsim-junit"):
            session.config.pluginmanager.register(JunitSoFar(session.config), "meshsim-junit")
        start_up(tests, self.options)

    # One test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        problem = item.stash.get(PROBLEM_KEY, None)
        if problem is not None:
            raise pytest.UsageError(problem)
        test = mesh_test(item)
        if test is None or not isinstance(item, pytest.Function):
            return
        from meshsim.pytest_plugin.running import backend_of

        backend, reason = backend_of(test, self.options)
        if reason is None and item.cls is not None and hasattr(item.cls, "mesh_unsupported"):
            reason = item.cls.mesh_unsupported()
        item.stash[BACKEND_KEY] = backend
        if reason is not None and self.options.strict:
            item.stash[CANNOT_RUN_KEY] = reason
        elif reason is not None:
            raise pytest_private.skipped_at_test(reason)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        test = mesh_test(pyfuncitem)
        if test is None:
            return None
        reason = pyfuncitem.stash.get(CANNOT_RUN_KEY, None)
        if reason is not None:
            pytest.fail(f"{reason} (--mesh-strict)", pytrace=False)
        self._run(pyfuncitem, test)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        from meshsim.pytest_plugin.shown import shown_by

        if call.excinfo is not None and report.failed:
            shown = shown_by(call.excinfo.value)
            if shown is not None:
                report.longrepr = shown
        return report

    def _run(self, item: pytest.Function, test: MeshTest) -> None:
        if is_property_test(item.obj):
            run_examples(item, lambda example: self._run_once(item, test, example))
        else:
            self._run_once(item, test, None)

    def _run_once(self, item: pytest.Function, test: MeshTest, example: Mapping[str, Any] | None) -> None:
        from meshsim.pytest_plugin.output import show_output
        from meshsim.pytest_plugin.running import run_item

        problem = ""
        try:
            ran = run_item(item, test, self.options, item.stash[BACKEND_KEY], example)
        except (UsageError, CannotRun) as error:
            problem = str(error)
        if problem:
            # Outside of the except block: the message says it all, without a chain of exceptions.
            pytest.fail(problem, pytrace=False)
        if example is None or not ran.result.ok:
            self.results.append(ran.result)
            self._record(item, ran.result)
        item.stash[RESULT_KEY] = ran.result
        show_output(item, ran.result.ranks, ran.logs, self.options.show_ranks)
        _conclude(item, ran)

    def _record(self, item: pytest.Item, result: RunResult) -> None:
        if self.options.record is None:
            return
        from meshsim.reports.files import write_json

        folder = Path(self.options.record)
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.=,@+-]+", "-", item.nodeid).strip("-")
        write_json(folder / f"{name}.json", result.to_json())

    # The page

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self.options.report is not None:
            from meshsim.pytest_plugin.html_report import HtmlReport

            page = HtmlReport(self.options.report, self.results)
            session.config.pluginmanager.register(page, "meshsim-page")


def _conclude(item: pytest.Function, ran: Ran) -> None:
    """Return for a pass; otherwise raise what makes pytest report the outcome."""
    from meshsim.pytest_plugin.concluding import conclusion
    from meshsim.pytest_plugin.outcomes import Case
    from meshsim.pytest_plugin.running import function_place
    from meshsim.pytest_plugin.subtest_reports import report_subtests

    case = Case(ran.result)
    _pass_on_warnings(item, case)
    _pass_on_recorded(item, case)
    report_subtests(item, case)
    error = conclusion(ran.result, function_place(item))
    if error is not None:
        raise error
    _warn_of_return_value(item, case)


def _pass_on_warnings(item: pytest.Function, case: Case) -> None:
    """The ranks' warnings become the test's, each different one once."""
    given = dict.fromkeys(
        warning for outcome in case.outcomes if outcome is not None for warning in outcome.warnings
    )
    known = item.stash.setdefault(WARNED_KEY, set())
    for warning in given:
        if warning in known:
            continue
        known.add(warning)
        item.ihook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(
                    warning.message, _category(*warning.category), warning.filename, warning.lineno
                ),
                "nodeid": item.nodeid,
                "when": "runtest",
                "location": None,
            }
        )


def _category(module: str, name: str) -> type[Warning]:
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError:
        kind = None
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else UserWarning


def _pass_on_recorded(item: pytest.Function, case: Case) -> None:
    """Properties that ranks recorded, each different one once."""
    made: list[Any] = []
    for outcome in case.outcomes:
        for call in outcome.recorded if outcome is not None else ():
            if call not in made:
                made.append(call)
    for name, arguments, keywords in made:
        record: Any = item.funcargs[name]
        record(*arguments, **keywords)


def _warn_of_return_value(item: pytest.Function, case: Case) -> None:
    kinds = sorted(
        {outcome.returned for outcome in case.outcomes if outcome is not None and outcome.returned}
    )
    if kinds:
        warnings.warn(
            pytest.PytestReturnNotNoneWarning(
                f"Test functions should return None, but {item.nodeid} returned {', '.join(kinds)}.\n"
                "Did you mean to use `assert` instead of `return`?"
            ),
            stacklevel=2,
        )
