"""Jobs on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import Processes, without_launcher


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.end()


@pytest.fixture
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process isn't a rank of a job."""
    for name in set(os.environ) - set(without_launcher(os.environ)):
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def module_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    made = Processes(tmp_path_factory.mktemp("job"))
    yield made
    made.end()
