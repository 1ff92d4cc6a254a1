"""``DistributedTest`` and ``DistributedFixture``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest


class _OnRanks:
    """The settings that both classes share. All are class attributes, to be overridden in a subclass."""

    world_size: Any = 2
    """How many ranks; for a test also a list, then each test runs with each."""
    init_distributed = True
    """Whether a rank finds the default process group started."""
    set_dist_env = True
    """Whether a rank finds ``RANK``, ``WORLD_SIZE`` and their like in its environment."""
    requires_cuda_env = False
    """Skip where there is no accelerator."""
    reuse_dist_env = False
    """Accepted for the sake of the suite: workers are reused always, and are clean each time."""
    non_daemonic_procs = False
    """Accepted for the sake of the suite: a rank may always start processes."""
    exec_timeout: float | None = None
    """Seconds for one run."""


class DistributedTest(_OnRanks):
    """Test methods run on ``world_size`` ranks; ``@pytest.mark.world_size(n)`` on one of them goes first.

    Fixtures and parametrisation are those of mesh tests.
    """

    is_dist_test = True
    __test__: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # The class itself holds no tests; its subclasses do.
        if "__test__" not in vars(cls):
            cls.__test__ = True

    @classmethod
    def mesh_marks(cls, node: pytest.Item) -> list[pytest.Mark]:
        """The ``mesh`` marker that stands for the class's attributes; asked for at collection."""
        own = node.get_closest_marker("world_size")
        sizes = own.args[0] if own is not None else cls.world_size
        topologies = [f"dp={size}" for size in (sizes if isinstance(sizes, list | tuple) else [sizes])]
        options: dict[str, Any] = {"topologies": topologies}
        if cls.exec_timeout is not None:
            options["timeout"] = float(cls.exec_timeout)
        return [pytest.mark.mesh(**options).mark]

    @classmethod
    def mesh_unsupported(cls) -> str | None:
        """Why the class's tests can't run here."""
        return _missing(cls)

    def mesh_call(self, function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
        """Called on each rank in place of the test method."""
        return _call(self, function, keywords)


class DistributedFixture(_OnRanks):
    """A subclass is a fixture by its own name: its method ``run`` runs on ``world_size`` ranks.

    Other fixtures are arguments of ``run``. What it makes is handed on in files, as in ``class_tmpdir``.
    """

    is_dist_fixture = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.run is not DistributedFixture.run:
            # pytest finds fixtures among the attributes of the module that defines them.
            fixture = pytest.fixture(name=cls.__name__)(fixture_of(cls))
            setattr(sys.modules[cls.__module__], f"fixture_{cls.__name__}", fixture)

    def run(self, *arguments: Any, **keywords: Any) -> None:
        """To be overridden."""
        raise NotImplementedError(f"{type(self).__qualname__} has no method run")


def fixture_of(kind: type[DistributedFixture]) -> Callable[..., None]:
    """The fixture function that a subclass of ``DistributedFixture`` stands for."""
    names = [name for name in inspect.signature(kind.run).parameters if name != "self"]

    def run_fixture(**keywords: Any) -> None:
        from meshsim.compat.running import run_on_ranks

        reason = _missing(kind)
        if reason is not None:
            pytest.skip(reason)
        run_on_ranks(
            _FixtureRun(kind, tuple(names)),
            keywords,
            topology=f"dp={kind.world_size}",
            world_size=kind.world_size,
            name=kind.__qualname__,
            place=kind.run,
            timeout=kind.exec_timeout,
        )

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
    vars(run_fixture)["__signature__"] = inspect.Signature(parameters)
    run_fixture.__name__ = kind.__name__
    return run_fixture


class _FixtureRun:
    """On a rank: makes the instance, and runs it."""

    def __init__(self, kind: type[DistributedFixture], names: tuple[str, ...]) -> None:
        self._kind = kind
        self._names = names

    def __call__(self, **keywords: Any) -> None:
        _call(self._kind(), self._kind.run, keywords)


def _call(instance: _OnRanks, function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    from meshsim.compat.hidden_group import HiddenGroup
    from meshsim.compat.rank_environment import without_rank_environment
    from meshsim.context import this_rank

    context = this_rank("a distributed test")
    vars(instance)["world_size"] = context.world_size
    with without_rank_environment(not instance.set_dist_env):
        if instance.init_distributed:
            return function(instance, **keywords)
        hidden = HiddenGroup(context)
        hidden.start()
        try:
            return function(instance, **keywords)
        finally:
            hidden.stop()


def _missing(kind: type[_OnRanks]) -> str | None:
    if not kind.requires_cuda_env:
        return None
    import torch

    return None if torch.accelerator.is_available() else "needs an accelerator, and there is none"
