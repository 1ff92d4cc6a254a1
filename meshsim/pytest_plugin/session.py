"""One pytest session's mesh tests: runs them, and turns each run into one report."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshsim.errors import CannotRun, UsageError
from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.collecting import PROBLEM_KEY, Collection, MeshTest, marked_lambda, mesh_test
from meshsim.pytest_plugin.keys import REPRESENTATION_KEY
from meshsim.pytest_plugin.options import MeshOptions

if TYPE_CHECKING:
    from meshsim.pytest_plugin.outcomes import Case
    from meshsim.pytest_plugin.running import Ran
    from meshsim.result import RunResult

RESULT_KEY = pytest.StashKey["RunResult"]()
"""The result of an item's run."""
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

    # One test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        problem = item.stash.get(PROBLEM_KEY, None)
        if problem is not None:
            raise pytest.UsageError(problem)
        test = mesh_test(item)
        if test is None:
            return
        from meshsim.pytest_plugin.running import backend_of

        backend, reason = backend_of(test, self.options)
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
        representation = item.stash.get(REPRESENTATION_KEY, None)
        if representation is not None and call.when == "call" and report.failed:
            report.longrepr = representation
        return report

    def _run(self, item: pytest.Function, test: MeshTest) -> None:
        from meshsim.pytest_plugin.output import show_output
        from meshsim.pytest_plugin.running import run_item

        try:
            ran = run_item(item, test, self.options, item.stash[BACKEND_KEY])
        except (UsageError, CannotRun) as error:
            pytest.fail(str(error), pytrace=False)
        self.results.append(ran.result)
        item.stash[RESULT_KEY] = ran.result
        show_output(item, ran.result.ranks, ran.logs, self.options.show_ranks)
        self._record(item, ran.result)
        _conclude(item, ran)

    def _record(self, item: pytest.Item, result: RunResult) -> None:
        if self.options.record is None:
            return
        from meshsim.reports.files import write_json

        folder = Path(self.options.record)
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.=,@+-]+", "-", item.nodeid).strip("-")
        write_json(folder / f"{name}.json", result.to_json())

    # The end

    def pytest_sessionfinish(self) -> None:
        if self.options.report is not None:
            from meshsim.pytest_plugin.html_report import write_html_report

            write_html_report(self.options.report, self.results)


def _conclude(item: pytest.Function, ran: Ran) -> None:
    """Return for a pass; otherwise raise what makes pytest report the outcome."""
    from meshsim.pytest_plugin.failures import failure_representation
    from meshsim.pytest_plugin.outcomes import Case, Outcome, decide, merged_reason
    from meshsim.pytest_plugin.subtest_reports import report_subtests

    case = Case(ran.result)
    outcome = decide(case)
    report_subtests(item, case)
    _pass_on_warnings(item, case)
    _pass_on_recorded(item, case)
    if outcome is Outcome.PASS:
        _warn_of_return_value(item, case)
        return
    if outcome is Outcome.SKIP:
        raise pytest_private.skipped_at_test(merged_reason(case))
    if outcome is Outcome.XFAIL:
        pytest.xfail(merged_reason(case))
    if outcome is Outcome.EXIT:
        codes = [own.exit_code for own in case.outcomes if own is not None and own.exit_code is not None]
        pytest.exit(merged_reason(case), returncode=max(codes, default=None))
    item.stash[REPRESENTATION_KEY] = failure_representation(
        case, outcome, pytest_private.function_place(item.obj)
    )
    raise _exception_of(case)


def _exception_of(case: Case) -> BaseException:
    """The odd rank's exception, so that ``xfail(raises=...)`` and debuggers see it; RunFailed without one."""
    from meshsim.errors import RunFailed

    for rank in case.result.verdict.ranks:
        failure = case.result.ranks[rank].failure if rank < len(case.result.ranks) else None
        outcome = case.outcomes[rank] if rank < len(case.outcomes) else None
        if failure is None or outcome is None:
            continue
        if isinstance(failure.exception, Exception | pytest_private.outcomes.OutcomeException):
            return failure.exception
        rebuilt = _rebuilt(outcome.bases, failure.message)
        if rebuilt is not None:
            return rebuilt
    return RunFailed(case.result)


def _rebuilt(bases: tuple[str, ...], message: str) -> BaseException | None:
    """An exception that couldn't leave its process, of the nearest class that is known here."""
    for name in bases:
        module, _, qualname = name.rpartition(".")
        try:
            kind = getattr(importlib.import_module(module or "builtins"), qualname, None)
        except ImportError:
            continue
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind.__new__(kind, message)
    return None


def _pass_on_warnings(item: pytest.Function, case: Case) -> None:
    """The ranks' warnings become the test's, each different one once."""
    given = dict.fromkeys(
        warning for outcome in case.outcomes if outcome is not None for warning in outcome.warnings
    )
    for warning in given:
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
