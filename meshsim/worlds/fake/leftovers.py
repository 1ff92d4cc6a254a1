"""What a scenario may leave changed in the process, beyond what each rank has of its own, and is put back."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from meshsim import torch_private


@contextmanager
def put_back() -> Iterator[None]:
    """On leaving, loggers, umask, recursion limit, torch's print options and flags are as before."""
    with ExitStack() as stack:
        stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        stack.callback(os.umask, _umask())
        stack.enter_context(_loggers_put_back())
        stack.enter_context(torch_private.print_options_put_back())
        for flags in (torch.backends.cudnn, torch.backends.mkldnn):
            for name in ("enabled", "deterministic", "benchmark", "allow_tf32"):
                if hasattr(flags, name):
                    stack.callback(_set_again, flags, name, getattr(flags, name))
        yield


def _umask() -> int:
    """There is no way to read it but to set it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _set_again(owner: Any, name: str, value: Any) -> None:
    if getattr(owner, name) != value:
        setattr(owner, name, value)


@contextmanager
def _loggers_put_back() -> Iterator[None]:
    """Levels, handlers and switches of the loggers that there are; a logger made meanwhile stays."""
    named = [
        logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)
    ]
    before = [
        (logger, logger.level, list(logger.handlers), logger.propagate, logger.disabled)
        for logger in (logging.root, *named)
    ]
    disabled = logging.root.manager.disable
    try:
        yield
    finally:
        logging.disable(disabled)
        for logger, level, handlers, propagate, off in before:
            if logger.level != level:
                logger.setLevel(level)
            if logger.handlers != handlers:
                logger.handlers[:] = handlers
            logger.propagate, logger.disabled = propagate, off
