"""Which items are mesh tests: parametrises over topologies, and refuses at collection what can't work."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.marker import WRONG_MARKS, Case, MeshMarks, read_marks
from meshsim.pytest_plugin.options import MeshOptions
from meshsim.pytest_plugin.property_tests import DRAWN, is_property_test, prepare

TOPOLOGY_PARAM = "mesh_topology"
"""The fixture whose value is the text of the topology that a test runs on."""


@dataclass(frozen=True)
class MeshTest:
    """One item that runs on a mesh."""

    case: Case
    settings: Mapping[str, Any]


TEST_KEY = pytest.StashKey[MeshTest]()


class Collection:
    """Reads each combination of markers once: a class of a thousand parametrised tests has one."""

    def __init__(self, options: MeshOptions) -> None:
        self._options = options
        self._known: dict[tuple[int, ...], tuple[Sequence[pytest.Mark], MeshMarks]] = {}

    def marks_of(self, node: pytest.Item) -> MeshMarks | None:
        """What the markers of a node say together; None where it has none."""
        marks = list(node.iter_markers("mesh"))
        stand_for = getattr(getattr(node, "cls", None), "mesh_marks", None)
        if stand_for is not None:
            marks += stand_for(node)
        if not marks:
            return None
        function = getattr(node, "obj", None)
        without = DRAWN if is_property_test(function) else None
        key = (without is None, *map(id, marks))
        if key not in self._known:
            # The marks are kept, so that no other mark can get their ids.
            self._known[key] = marks, read_marks(marks, self._options, without)
        return self._known[key][1]

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """One test for each topology, where there are several."""
        try:
            marks = self.marks_of(metafunc.definition)
        except WRONG_MARKS as error:
            raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from error
        if marks is None:
            return
        self._check_sendable(metafunc, marks)
        if len(marks.cases) > 1:
            if TOPOLOGY_PARAM not in metafunc.fixturenames:
                metafunc.fixturenames.append(TOPOLOGY_PARAM)
            ids = [case.id for case in marks.cases]
            metafunc.parametrize(TOPOLOGY_PARAM, marks.cases, ids=ids, indirect=True, scope="function")

    def _check_sendable(self, metafunc: pytest.Metafunc, marks: MeshMarks) -> None:
        """A body that can't reach its ranks is an error here, before anything runs."""
        from meshsim.pytest_plugin.ranks.values import CannotBePrivate, check_private, check_sendable

        backend = self._options.backend or marks.settings.get("backend")
        try:
            for name, values in pytest_private.direct_parameters(metafunc.definition).items():
                for value in values:
                    check_private(value, f"parameter {name!r}")
            if backend == "gloo" and not is_property_test(metafunc.function):
                check_sendable(metafunc.function, f"the body of {metafunc.function.__name__}")
        except CannotBePrivate as error:
            raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None

    def note(self, item: pytest.Item) -> None:
        """Remember that an item is a mesh test, and on which topology."""
        try:
            marks = self.marks_of(item)
        except WRONG_MARKS as error:
            # Only where pytest doesn't parametrise, which is in unittest's classes.
            item.stash[PROBLEM_KEY] = str(error)
            return
        if marks is None:
            return
        if not isinstance(item, pytest.Function) or _is_unittest(item):
            item.stash[PROBLEM_KEY] = (
                "@pytest.mark.mesh is for test functions and for methods of plain classes; derive a "
                "unittest.TestCase from meshsim.compat.MeshTestCase instead, and set its topology there"
            )
            return
        case = marks.cases[0]
        if len(marks.cases) > 1:
            case = cast(Case, item.callspec.params[TOPOLOGY_PARAM])
        item.stash[TEST_KEY] = MeshTest(case, marks.settings)
        if is_property_test(item.obj):
            prepare(item.obj)


PROBLEM_KEY = pytest.StashKey[str]()
"""Why an item that is marked can't be run."""


def _is_unittest(item: pytest.Function) -> bool:
    import unittest

    return item.cls is not None and issubclass(item.cls, unittest.TestCase)


def mesh_test(item: pytest.Item) -> MeshTest | None:
    """The mesh test that an item is, or None."""
    return item.stash.get(TEST_KEY, None)


def marked_lambda(collector: pytest.Collector, name: str, decorated: pytest.MarkDecorator) -> Any:
    """The function of ``test_x = pytest.mark.mesh(...)(lambda ...)``, put in its place; None if it isn't one.

    pytest takes the lambda for one more argument of the marker.
    """
    function = decorated.args[-1] if decorated.args else None
    if decorated.name != "mesh" or not inspect.isfunction(function):
        return None
    mark = pytest.mark.mesh(*decorated.args[:-1], **decorated.kwargs).mark
    vars(function)["pytestmark"] = [mark]
    setattr(collector.obj, name, function)  # type: ignore[attr-defined]
    return function
