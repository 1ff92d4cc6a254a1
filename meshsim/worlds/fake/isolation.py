"""Each rank alone: what a process of its own would keep to itself, put away and taken out at every hand-over.

Per-thread state of torch (grad mode, autocast, default device, dispatch modes, flush-denormal) and context
variables are a rank's own because a rank is a thread. Swapped here is what Python and torch keep per process:
c10d's groups, random states, environment variables, the working directory, ``sys.argv``, ``sys.path``, the
standard streams, the exception hook, warning filters, torch's default dtype and settings
(``settings.py``), DTensor's handlers, and the globals of the modules named by ``isolate``.

Shared by all ranks, as one process has it once: imported modules and their globals (but for ``isolate``),
loggers with their levels and handlers, signal handlers (Python lets only the main thread set them), the
umask, the recursion limit, file descriptors (so ``os.write(1, ...)``, child processes and C++ print to the
caller's own output), variables set by ``os.putenv`` behind ``os.environ``'s back, ``__warningregistry__`` (a
warning shown "once" is shown by one rank), torch's print options and backend flags such as
``torch.backends.cudnn``. Loggers, umask, recursion limit, print options and flags are put back after the run
(``leftovers.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOBase
from types import ModuleType
from typing import Any

import torch

from meshsim.errors import UsageError
from meshsim.torch_private import C10dWorld
from meshsim.worlds import hand_over
from meshsim.worlds.fake import module_globals, numpy_random, python_random, settings
from meshsim.worlds.fake.module_globals import Globals
from meshsim.worlds.fake.references import References, Values

_environ: Any = os.environ
# The same variables as bytes, over the same mapping; not on Windows.
_environments: tuple[Any, ...] = (_environ, *([os.environb] if os.supports_bytes_environ else ()))


class ProcessState:
    """One rank's (or the caller's own) share of the process-wide state."""

    __slots__ = (
        "c10d",
        "cwd",
        "environment",
        "modules",
        "numpy_bits",
        "numpy_gauss",
        "python_random",
        "references",
        "settings",
        "swapped",
        "torch_random",
    )

    def __init__(self) -> None:
        self.c10d = C10dWorld()
        self.torch_random = torch.default_generator.get_state()
        self.python_random = python_random.save()
        self.numpy_bits: Any = None
        self.numpy_gauss: Any = None
        self.settings = settings.current()
        self.environment: dict[Any, Any] = _environ._data
        self.cwd = os.getcwd()
        self.references: Values = []
        self.modules: list[Globals] = []
        self.swapped: list[hand_over.Swapped] | None = None


def _putenv(key: Any, value: Any) -> None:
    if value is None:
        os.unsetenv(key)
    else:
        os.putenv(key, value)


class _Environment(dict[Any, Any]):
    """What ``os.environ`` holds while a rank runs. Notes which keys any rank has set, for they may differ."""

    __slots__ = ("touched",)

    def __init__(self, contents: Mapping[Any, Any], touched: set[Any]) -> None:
        super().__init__(contents)
        self.touched = touched

    def __setitem__(self, key: Any, value: Any) -> None:
        self.touched.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self.touched.add(key)
        super().__delitem__(key)


class Isolation:
    """Swaps :class:`ProcessState` between ranks. Only the rank that holds the baton may call
    ``enter``/``leave``.
    """

    def __init__(
        self, world_size: int, seed: int, modules: Sequence[str], stdout: TextIOBase, stderr: TextIOBase
    ) -> None:
        self._modules = [_imported(name) for name in modules]
        self._references = References(stdout, stderr)
        self._outside = ProcessState()
        self._outside.c10d.capture()
        self._outside.references = self._references.capture()
        self._outside.modules = [module_globals.capture(module) for module in self._modules]
        self._ranks: list[ProcessState | None] = [None] * world_size
        self._seed = seed
        self._numpy = _numpy_random()
        if self._numpy is not None:
            self._outside.numpy_bits = self._numpy.get_bit_generator()
            self._outside.numpy_gauss = numpy_random.kept_value()
            self._fresh_numpy_state = self._numpy.RandomState(seed).get_state(legacy=False)
        self._fresh_random = python_random.fresh(seed)
        self._fresh_torch = torch.Generator().manual_seed(seed).get_state()
        own = [self._encoded_environment(rank) for rank in (0, 1)]
        self._launcher_keys = frozenset(own[0])
        self._touched: set[Any] = {key for key in own[0] if own[0][key] != own[1][key]}
        self._installed = self._outside

    def environment_for(self, rank: int) -> Mapping[str, str]:
        """What torchrun would set for this rank on one node."""
        size = str(len(self._ranks))
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": size,
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        }

    def _encoded_environment(self, rank: int) -> dict[Any, Any]:
        items = self.environment_for(rank).items()
        return {_environ.encodekey(key): _environ.encodevalue(value) for key, value in items}

    def enter(self, rank: int) -> None:
        """Install the rank's state; made fresh the first time."""
        state = self._ranks[rank]
        if state is None:
            state = self._ranks[rank] = self._fresh(rank)
        self._install(state)

    def leave(self, rank: int) -> None:
        """Put the rank's state away."""
        state = self._ranks[rank]
        if state is not None:
            self._capture(state)

    def restore(self) -> None:
        """Give the caller back the process as it was."""
        # A rank that was stopped in its midst hasn't put its state away.
        if self._installed is not self._outside:
            self._capture(self._installed)
        self._install(self._outside)
        self._ranks = []

    def _fresh(self, rank: int) -> ProcessState:
        state = ProcessState.__new__(ProcessState)
        state.c10d = C10dWorld()
        state.torch_random = self._fresh_torch
        state.python_random = self._fresh_random
        state.numpy_bits = None if self._numpy is None else self._fresh_numpy_bits()
        state.numpy_gauss = numpy_random.NOTHING_KEPT
        state.settings = settings.fresh()
        state.environment = _Environment(
            {**self._outside.environment, **self._encoded_environment(rank)}, self._touched
        )
        state.cwd = self._outside.cwd
        state.references = self._references.fresh()
        state.modules = module_globals.copies(self._outside.modules)
        state.swapped = []
        return state

    def _fresh_numpy_bits(self) -> Any:
        """The generator that ``numpy.random.seed(seed)`` gives."""
        bits = self._numpy.MT19937()
        bits.state = self._fresh_numpy_state
        return bits

    def _show_environment(self, new: dict[Any, Any]) -> None:
        """Swap ``os.environ``'s contents, and what C's ``getenv`` and child processes see.

        The mapping behind ``os.environ`` is replaced, not edited: a hand-over costs the keys that may differ.
        """
        old = _environ._data
        for mapping in _environments:
            mapping._data = new
        between_ranks = isinstance(old, _Environment) and isinstance(new, _Environment)
        for key in self._touched if between_ranks else self._touched | self._launcher_keys:
            value = new.get(key)
            if old.get(key) != value:
                _putenv(key, value)

    def _capture(self, state: ProcessState) -> None:
        hand_over.leave()
        state.c10d.capture()
        self._capture_random(state)
        chosen = settings.current()
        if chosen != state.settings:
            state.settings = chosen
        state.environment = _environ._data
        state.cwd = _working_directory(state.cwd)
        state.references = self._references.capture()
        if self._modules:
            state.modules = [module_globals.capture(module) for module in self._modules]

    def _capture_random(self, state: ProcessState) -> None:
        """Keep the old objects where nothing was drawn: comparing costs less than a thousand copies."""
        torch_random = torch.default_generator.get_state()
        if not torch.equal(torch_random, state.torch_random):
            state.torch_random = torch_random
        drawn = python_random.save()
        if drawn != state.python_random:
            state.python_random = drawn
        if self._numpy is not None:
            kept = numpy_random.kept_value()
            if kept != state.numpy_gauss:
                state.numpy_gauss = kept

    def _install(self, state: ProcessState) -> None:
        before, self._installed = self._installed, state
        state.c10d.install()
        # Ranks that have drawn the same numbers share one state object, and pass it on untouched.
        if before.torch_random is not state.torch_random:
            torch.default_generator.set_state(state.torch_random)
        if before.python_random is not state.python_random:
            python_random.restore(state.python_random)
        if self._numpy is not None:
            self._numpy.set_bit_generator(state.numpy_bits)
            if before.numpy_gauss is not state.numpy_gauss:
                numpy_random.keep_value(state.numpy_gauss)
        settings.install(state.settings, before.settings)
        if _environ._data is not state.environment:
            self._show_environment(state.environment)
        if before.cwd != state.cwd:
            os.chdir(state.cwd)
        self._references.install(state.references)
        for module, contents in zip(self._modules, state.modules, strict=True):
            module_globals.install(module, contents)
        hand_over.enter(state.swapped)


def _working_directory(otherwise: str) -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return otherwise


def _imported(name: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"isolate: can't import module {name!r}: {error}") from None


def _numpy_random() -> Any:
    """NumPy's random module where NumPy has been imported (torch imports it when it's there)."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random
