"""Importing the module that a scenario is in, by its file or by its name."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from meshsim.errors import UsageError


def from_file(path: str, name: str) -> Any:
    """The object called ``name`` in a Python file. The file is imported once, until it changes."""
    if not path or not name:
        raise UsageError(f"scenario {path + '::' + name!r} is incomplete; write it as file.py::name")
    full = os.path.abspath(path)
    if not os.path.isfile(full):
        what = "is a folder, not a file" if os.path.isdir(full) else "isn't there"
        raise UsageError(f"scenario {path}::{name}: the file {full} {what}")
    if not full.endswith(".py"):
        raise UsageError(f"scenario {path}::{name}: {full} is not a Python file, its name must end with .py")
    return _attribute(_module_of_file(full, f"{path}::{name}"), name, f"the file {full}")


def from_module(module: str, name: str) -> Any:
    """The object called ``name`` (dots allowed) in an importable module."""
    if not module or not name:
        raise UsageError(f"scenario {module + ':' + name!r} is incomplete; write it as module:name")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(f"{missing}."):
            raise UsageError(
                f"scenario {module}:{name}: there is no module {missing!r} on the Python path; "
                "give the file as path/to/file.py::name"
            ) from error
        raise _import_failed(f"{module}:{name}", f"module {module!r}", error) from error
    except Exception as error:
        raise _import_failed(f"{module}:{name}", f"module {module!r}", error) from error
    return _attribute(found, name, f"module {module!r}")


def _module_of_file(full: str, target: str) -> ModuleType:
    """The file as a module. One that is imported already under its own name is taken as it is."""
    loaded = _imported_already(full)
    if loaded is not None:
        return loaded
    stem = os.path.splitext(os.path.basename(full))[0]
    module_name = f"meshsim_scenario_{stem}_{_fingerprint(full)}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, full)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    folder = os.path.dirname(full)
    added = folder not in sys.path
    if added:
        # As for a script: the file can import its neighbours, also later, from inside its functions.
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        if added:
            sys.path.remove(folder)
        raise _import_failed(target, f"the file {full}", error) from error
    return module


def _imported_already(full: str) -> ModuleType | None:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            file
            and not name.startswith("meshsim_scenario_")
            and name != "__mp_main__"
            and os.path.abspath(file) == full
        ):
            return module
    return None


def _fingerprint(full: str) -> str:
    with open(full, "rb") as file:
        return hashlib.sha256(full.encode() + b"\0" + file.read()).hexdigest()[:12]


def _attribute(module: ModuleType, name: str, where: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(_missing(module, name, where))
        found = getattr(found, part)
    return found


def _missing(module: ModuleType, name: str, where: str) -> str:
    functions = sorted(
        key
        for key, value in vars(module).items()
        if callable(value)
        and not key.startswith("_")
        and str(getattr(value, "__module__", "")).startswith(module.__name__)
    )
    near = difflib.get_close_matches(name, functions, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if not hint and functions:
        hint = f"; it has {', '.join(functions[:8])}" + (", ..." if len(functions) > 8 else "")
    return f"there is no {name!r} in {where}{hint}"


def _import_failed(target: str, what: str, error: BaseException) -> UsageError:
    reason = str(error).splitlines()[0] if str(error) else ""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith("<frozen"):
            place = f" at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        place = f" at {error.filename}:{error.lineno}"
    kind = type(error).__name__
    return UsageError(f"scenario {target}: importing {what} failed with {kind}: {reason}{place}")
