"""Writing reports to files. A place that can't be written is the caller's mistake, said before the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from meshsim.errors import UsageError
from meshsim.worlds.speaking import speaks_for_all


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose folder isn't there, or that can't be written."""
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"can't write {file}: it is a folder; give a file's name")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"can't write {file}: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise UsageError(f"can't write {file}: permission denied")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file, or say in one line why it can't be written. Of the ranks of a job one writes."""
    if not speaks_for_all():
        return
    try:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"can't write {os.fspath(path)}: {error.strerror or error}") from error


def write_json(path: str | os.PathLike[str], data: Any) -> None:
    """Write JSON; ``data`` must be JSON-safe already."""
    write_text(path, json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n")
