"""``unittest.TestCase`` classes whose test methods run on every rank."""

from __future__ import annotations

import functools
import os
import tempfile
import types
import unittest
from collections.abc import Callable
from typing import Any

from meshsim.compat.tensor_equality import TensorEquality
from meshsim.context import RankContext, this_rank


class MeshTestCase(TensorEquality, unittest.TestCase):
    """The test methods run on every rank of ``topology``, each rank with an instance of its own.

    ``setUpClass`` runs in the parent process, ``setUp`` and ``tearDown`` on each rank. On a rank
    ``self.rank_context`` and ``self.mesh_context`` say where it stands, ``self.rank`` which one it is.
    """

    topology: str = "dp=2"
    rank: int = -1
    """The rank that this instance runs on; -1 in the parent process."""

    def __init__(self, methodName: str = "runTest") -> None:
        super().__init__(methodName)
        method = getattr(self, methodName, None)
        if method is not None and methodName != "runTest":
            setattr(self, methodName, types.MethodType(_on_ranks(method.__func__, methodName), self))

    @property
    def rank_context(self) -> RankContext:
        return this_rank("rank_context")

    @property
    def mesh_context(self) -> Any:
        return self.rank_context.mesh

    @property
    def on_rank(self) -> bool:
        """Whether this instance runs on a rank, and not in the parent process."""
        return self.rank >= 0

    def run_on_rank(self, method: Callable[[], Any]) -> None:
        """What a rank does: here ``setUp``, the method, ``tearDown`` and the cleanups."""
        try:
            self.setUp()
            try:
                method()
            finally:
                self.tearDown()
        finally:
            self.run_cleanups()

    def run_cleanups(self) -> None:
        """``doCleanups`` keeps errors to itself where no test runner listens."""
        while self._cleanups:
            function, arguments, keywords = self._cleanups.pop()
            function(*arguments, **keywords)

    _cleanups: list[Any]

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        # In the parent process the instance only starts the ranks, which set themselves up.
        if not self.on_rank and not self._sets_up_in_parent:
            vars(self)["setUp"] = vars(self)["tearDown"] = _nothing
        return super().run(result)

    _sets_up_in_parent = False

    def _shape(self) -> tuple[str, int | None]:
        return self.topology, None

    def _shared(self) -> dict[str, Any]:
        """Attributes that every rank's instance gets."""
        return {}


def _nothing() -> None:
    pass


def _on_ranks(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def start_or_run(self: MeshTestCase) -> Any:
        if self.on_rank:
            return function(self)
        from meshsim.compat.running import run_on_ranks

        topology, world_size = self._shape()
        run_on_ranks(
            _RankCase(type(self), name, self._shared()),
            {},
            topology=topology,
            world_size=world_size,
            name=self.id(),
            place=function,
        )
        return None

    return start_or_run


class _RankCase:
    """On a rank: makes the instance, and runs one method on it."""

    def __init__(self, kind: type[MeshTestCase], method: str, shared: dict[str, Any]) -> None:
        self._kind = kind
        self._method = method
        self._shared = shared

    def __call__(self) -> None:
        case = self._kind(self._method)
        case.rank = this_rank("a test case").rank
        for name, value in self._shared.items():
            setattr(case, name, value)
        case.run_on_rank(getattr(case, self._method))


class _SelfSpawning(MeshTestCase):
    """The torch-style classes: ``world_size`` in place of a topology, ``setUp`` in the parent process."""

    file_name = ""
    """A file that does not exist yet, in a folder that all ranks see."""
    _sets_up_in_parent = True

    @property
    def world_size(self) -> int:
        return 4

    def setUp(self) -> None:
        super().setUp()
        if not self.file_name:
            handle, self.file_name = tempfile.mkstemp(prefix="meshsim-")
            os.close(handle)
            os.unlink(self.file_name)
            self.addCleanup(_remove, self.file_name)

    def _shape(self) -> tuple[str, int | None]:
        return f"dp={self.world_size}", self.world_size

    def _shared(self) -> dict[str, Any]:
        return {"file_name": self.file_name}


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)


class MultiProcessTestCase(_SelfSpawning):
    """Each test method starts without a process group, on ``world_size`` ranks.

    It calls ``init_process_group`` itself, with whatever store: it gets the ranks that the world has started.
    As in the original, ``setUp`` runs in the parent process, and a rank's instance has ``rank`` and
    ``file_name`` and none of what ``setUp`` has set.
    """

    def _spawn_processes(self) -> None:
        """Nothing to do: the ranks start when the test method is called."""

    _fork_processes = _spawn_processes

    @property
    def is_master(self) -> bool:
        return self.rank == 0

    def run_on_rank(self, method: Callable[[], Any]) -> None:
        from meshsim.compat.hidden_group import HiddenGroup

        hidden = HiddenGroup(self.rank_context)
        hidden.start()
        try:
            method()
        finally:
            self.run_cleanups()
            hidden.stop()


class MultiThreadedTestCase(_SelfSpawning):
    """Each test method finds a default process group of ``world_size`` ranks.

    ``perThreadSetUp`` and ``perThreadTearDown`` run on each rank.
    """

    @property
    def world_size(self) -> int:
        raise RuntimeError("world size not implemented: give the class a world_size")

    def _spawn_threads(self) -> None:
        """Nothing to do: the ranks start when the test method is called."""

    def perThreadSetUp(self) -> None:
        """Runs on each rank before the test method."""

    def perThreadTearDown(self) -> None:
        """Runs on each rank after the test method."""

    def run_on_rank(self, method: Callable[[], Any]) -> None:
        self.perThreadSetUp()
        try:
            method()
        finally:
            self.perThreadTearDown()
            self.run_cleanups()


def run_tests() -> None:
    """``unittest.main()``, under the name that torch-style suites call it by."""
    unittest.main()
