"""A clean slate for every run: what a scenario changed is put back, or the process is given up."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import logging
import os
import signal
import sys
import threading
import warnings
from typing import Any

import torch
import torch.distributed as dist

from meshsim import torch_private
from meshsim.worlds.gloo.installed import is_users_module
from meshsim.worlds.gloo.messages import Surroundings
from meshsim.worlds.gloo.process_group import RELEASER

# Loading these starts caches and threads that nothing can be said about.
_NOT_TO_BE_CLEANED = ("torch._inductor.compile_fx",)


class Slate:
    """The state of this worker before any scenario ran. ``lay_out`` before a run, ``wipe`` after it."""

    def __init__(self, stdout: int, stderr: int) -> None:
        self._outputs = (stdout, stderr)
        self._connect_outputs()
        self._modules = set(sys.modules)
        self._builtins = dict(__import__("builtins").__dict__)
        self._meta_path = list(sys.meta_path)
        self._path_hooks = list(sys.path_hooks)
        self._signals = {number: signal.getsignal(number) for number in _catchable_signals()}
        self._excepthook = sys.excepthook
        self._recursion_limit = sys.getrecursionlimit()
        self._gc_threshold = gc.get_threshold()
        self._filters = list(warnings.filters)
        self._logging = _LoggingState()
        self._torch = _TorchState()
        self._umask = _umask()

    def lay_out(self, surroundings: Surroundings) -> None:
        """Take over the parent's environment, directory and module path."""
        _set_environment(surroundings.environ)
        with contextlib.suppress(OSError):
            os.chdir(surroundings.cwd)
        sys.path[:] = surroundings.sys_path
        sys.argv[:] = surroundings.argv
        # What the parent wrote since the last run may be younger than what the finders remember of a folder.
        importlib.invalidate_caches()
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        torch.set_num_threads(int(threads) if threads.isdigit() and int(threads) > 0 else 1)

    def wipe(self) -> str:
        """Put everything back. Returns why the worker can't be used again, or nothing."""
        dirty = self._what_stays()
        if dirty:
            return dirty
        sys.meta_path[:] = self._meta_path
        sys.path_hooks[:] = self._path_hooks
        sys.excepthook = self._excepthook
        threading.excepthook = threading.__excepthook__
        sys.setrecursionlimit(self._recursion_limit)
        gc.enable()
        gc.set_threshold(*self._gc_threshold)
        sys.settrace(None)
        sys.setprofile(None)
        warnings.filters[:] = self._filters  # type: ignore[index]
        # Python caches, module by module, which warnings were shown; a new filter version makes it forget.
        warnings.filterwarnings("default", append=True)
        warnings.filters[:] = self._filters  # type: ignore[index]
        self._restore_signals()
        self._logging.restore()
        self._torch.restore()
        os.umask(self._umask)
        self._drop_user_modules()
        torch_private.forget_device_meshes()
        _flush_c_output()
        self._connect_outputs()
        return dirty

    def _what_stays(self) -> str:
        """What a scenario left that can't be taken back."""
        threads = [
            thread.name
            for thread in threading.enumerate()
            if thread is not threading.main_thread() and thread.name not in (RELEASER, "meshsim-control")
        ]
        if threads:
            return f"threads left running: {', '.join(threads)}"
        if not all(_same_file(number, source) for number, source in zip((1, 2), self._outputs, strict=True)):
            # What has the number now may be a socket that gloo still uses: it can't be taken away.
            return "standard output or error replaced"
        if _has_children():
            return "processes left running"
        if dist.is_initialized():
            return "a process group left behind"
        builtins = __import__("builtins").__dict__
        if any(builtins.get(name) is not value for name, value in self._builtins.items()):
            return "builtins changed"
        loaded = [name for name in _NOT_TO_BE_CLEANED if name in sys.modules and name not in self._modules]
        return f"{loaded[0]} loaded" if loaded else ""

    def _connect_outputs(self) -> None:
        for target, (source, name) in enumerate(
            zip(self._outputs, ("stdout", "stderr"), strict=True), start=1
        ):
            os.dup2(source, target)
            # Without a buffer: what a killed rank printed is there.
            raw = io.FileIO(target, "w", closefd=False)
            stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def _restore_signals(self) -> None:
        for number, handler in self._signals.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _drop_user_modules(self) -> None:
        """Forget what the scenario imported of the user's own code: the next run reads it afresh."""
        for name in set(sys.modules) - self._modules:
            if is_users_module(name):
                del sys.modules[name]
            else:
                self._modules.add(name)


class _LoggingState:
    def __init__(self) -> None:
        self._root = (logging.root.level, list(logging.root.handlers), list(logging.root.filters))
        self._disabled = logging.root.manager.disable
        self._known = set(logging.root.manager.loggerDict)

    def restore(self) -> None:
        level, handlers, filters = self._root
        if logging.root.level != level:
            logging.root.setLevel(level)
        logging.root.handlers[:] = handlers
        logging.root.filters[:] = filters
        logging.disable(self._disabled)
        for name in set(logging.root.manager.loggerDict) - self._known:
            logger = logging.root.manager.loggerDict[name]
            if isinstance(logger, logging.Logger):
                logger.handlers.clear()
                logger.filters.clear()
                if logger.level != logging.NOTSET:
                    logger.setLevel(logging.NOTSET)
                logger.propagate = True
                logger.disabled = False


class _TorchState:
    """torch's switches that outlive a call."""

    def __init__(self) -> None:
        self._dtype = torch.get_default_dtype()
        self._precision = torch.get_float32_matmul_precision()

    def restore(self) -> None:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(self._dtype)
        torch.set_default_device(None)
        torch.set_float32_matmul_precision(self._precision)
        if torch.are_deterministic_algorithms_enabled():
            # Asked first, because the setter imports the compiler, which takes a second.
            torch.use_deterministic_algorithms(False)
        torch.autograd.set_detect_anomaly(False)
        torch.set_autocast_enabled("cpu", False)
        torch.set_flush_denormal(False)
        torch.set_printoptions(profile="default")


def _set_environment(environ: dict[str, str]) -> None:
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    for name, value in environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _catchable_signals() -> set[Any]:
    return signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGQUIT}


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def _has_children() -> bool:
    """Whether a process that the scenario started still runs; those that have ended are waited for."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush_c_output() -> None:
    ctypes.CDLL(None).fflush(None)
