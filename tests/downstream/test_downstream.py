"""A downstream project, installed on its own, whose tests run in every world."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshsim

_PROJECT = Path(__file__).parent / "sample_trainer"
_PUBLIC_MODULES = {"meshsim", "meshsim.compat", "meshsim.strategies"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's package, built and installed into a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "sample_trainer"
    # setuptools builds beside the sources.
    subprocess.run(["cp", "-r", str(_PROJECT), str(source)], check=True)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=120, cwd=target
    )
    assert (target / "sample_trainer" / "training.py").is_file()
    return target


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_its_tests_pass_in_every_world(backend, installed, tmp_path):
    subprocess.run(
        ["cp", "-r", str(_PROJECT / "checks"), str(_PROJECT / "pyproject.toml"), str(tmp_path)], check=True
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--mesh-backend={backend}"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "9 passed, 1 xfailed" in run.stdout


def test_it_uses_public_names_only():
    for path in _PROJECT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshsim"):
                assert node.module in _PUBLIC_MODULES
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "meshsim"
            ):
                assert node.attr in meshsim.__all__
