"""Ending with the parent, however the parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _set_death_signal(number: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # Python has no wrapper for prctl. The signal is sent when the *thread* that made this process ends.
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def die_with_parent(parent: int) -> None:
    """On Linux, be killed when the thread that started this process ends; end now if ``parent`` is gone."""
    _set_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_starting_thread() -> None:
    """Undo :func:`die_with_parent`: the thread that started this process may end before its process does."""
    _set_death_signal(0)


def open_parent_pidfd(parent: int) -> int | None:
    """A descriptor that becomes readable when ``parent`` ends; None where the system has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(parent)
    except OSError:
        return None
