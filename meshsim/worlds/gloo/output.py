"""What a worker writes, in files without a name: whole even when it is killed, gone with their users."""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import IO


class OutputFile:
    """One stream of one worker. The worker appends to it; the parent reads and empties it."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by close()
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        # Appending, so that the first byte after the file was emptied is written at its start.
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def fileno(self) -> int:
        return self._file.fileno()

    def text(self) -> str:
        """All that was written, decoded."""
        return self.data().decode("utf-8", "backslashreplace")

    def data(self) -> bytes:
        """All that was written."""
        size = os.fstat(self._file.fileno()).st_size
        parts, at = [], 0
        while at < size and (part := os.pread(self._file.fileno(), min(size - at, 1 << 24), at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def empty(self) -> None:
        os.ftruncate(self._file.fileno(), 0)

    def close(self) -> None:
        self._file.close()
