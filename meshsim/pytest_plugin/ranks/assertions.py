"""Assertion rewriting where pytest itself doesn't run: in a worker process."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from meshsim.pytest_plugin import pytest_private
from meshsim.pytest_plugin.ranks.settings import RankSettings


class _RewritingLoader(SourceFileLoader):
    """Compiles a module as pytest would. Bytecode caches are left alone: theirs is the plain code."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        tree = ast.parse(source, filename=path)
        pytest_private.rewrite_asserts(tree, source, path)
        code = compile(tree, path, "exec", dont_inherit=True)
        return code if isinstance(code, CodeType) else None


class RewritingFinder:
    """Finds the modules whose assertions the parent process has rewritten, and rewrites them here too."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        if file is None or not os.path.exists(file):
            return None
        return importlib.util.spec_from_file_location(
            name,
            file,
            loader=_RewritingLoader(name, file),
            submodule_search_locations=[os.path.dirname(file)]
            if os.path.basename(file) == "__init__.py"
            else None,
        )


class Rewriting:
    """Travels at the head of a test's body: in effect before the body's modules are imported."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)

    def __reduce__(self) -> tuple[Any, ...]:
        return install_rewriting, (self._files, os.getpid())


def install_rewriting(files: Mapping[str, str], sender: int) -> None:
    """In another process than the sender's: import the modules that the sender has rewritten likewise."""
    if os.getpid() == sender:
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, RewritingFinder)]
    if files:
        sys.meta_path.insert(0, RewritingFinder(files))


@contextlib.contextmanager
def comparisons_explained(settings: RankSettings) -> Iterator[None]:
    """Inside, a failed ``assert a == b`` shows how a and b differ."""
    if settings.in_process == os.getpid():
        yield
        return
    with pytest_private.explained_comparisons(settings.assertion_verbosity, settings.verbosity, settings.ini):
        yield
