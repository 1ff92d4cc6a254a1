"""Every code block and command of the README runs."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from meshsim.cli import main

REPOSITORY = Path(__file__).resolve().parents[3]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
FILES = {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCKS if kind == "python"}
SCRIPTS = [name for name in FILES if name not in ("grad_sync.py", "test_norm.py")]
SESSIONS = [
    [line.removeprefix("$ ") for line in text.splitlines()] for kind, text in BLOCKS if kind == "console"
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The README's files, in the current folder."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "grad_sync", raising=False)
    return tmp_path


def test_every_block_is_one_that_these_tests_run() -> None:
    assert {kind for kind, _ in BLOCKS} == {"python", "console"}
    assert all(name.endswith(".py") for name in FILES)
    assert all(command.startswith("meshsim ") for session in SESSIONS for command in session)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run(folder: Path, name: str) -> None:
    runpy.run_path(str(folder / name))
    sys.modules.pop("grad_sync", None)


@pytest.mark.parametrize("commands", SESSIONS, ids=lambda commands: commands[0])
def test_commands_succeed(folder: Path, commands: list[str]) -> None:
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command


def test_the_first_test_passes(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_norm.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_make_targets_are_there() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
