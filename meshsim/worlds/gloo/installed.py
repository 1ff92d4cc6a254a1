"""Telling installed code from the user's own."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from functools import lru_cache


def _roots() -> tuple[str, ...]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += site.getsitepackages()
    paths.append(site.getusersitepackages())
    for name in ("meshlib", "meshsim"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            paths.append(os.path.dirname(os.path.abspath(spec.origin)))
    return tuple({os.path.join(path, "") for path in paths if path})


_ROOTS = _roots()


@lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Whether a module's file belongs to Python, to an installed package, or to meshsim itself."""
    path = os.path.abspath(file)
    parts = path.split(os.sep)
    return path.startswith(_ROOTS) or "site-packages" in parts or "dist-packages" in parts


def is_users_module(name: str) -> bool:
    """Whether an imported module is the user's own: neither built in, nor of an installed package."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file:
        return not is_installed(file)
    if name in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    return not (file and is_installed(file))
