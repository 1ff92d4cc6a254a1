"""What the parent and its fork server say to each other: small records of fixed size."""

from __future__ import annotations

import struct
from enum import IntEnum

REQUEST = struct.Struct("!BQ")
NOTICE = struct.Struct("!BQqq")
FILES_OF_A_WORKER = 5
"""Sent with each fork request: the control socket; files for stdout, stderr, fatal errors and the journal."""


LOADABLE = (
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "torch.distributed.pipelining",
)
"""Slow to import: loaded once by the server, when the parent has them, instead of once by each rank."""


class Ask(IntEnum):
    """Requests: an operation and a worker's number."""

    FORK = 1
    KILL = 2
    SHOW_STACKS = 3
    LOAD = 4
    """Import the module of that place in ``LOADABLE``, in place of a worker's number."""
    STOP = 5


class Tell(IntEnum):
    """Notices: an operation, a worker's number and two values."""

    READY = 1
    """The server takes requests; the first value is its number of threads."""
    FORKED = 2
    """The process id."""
    NOT_FORKED = 3
    """An errno, or 0 and the number of threads."""
    ENDED = 4
    """The exit code, or minus the signal's number."""
