"""Packing a request so that any worker can rebuild it, whatever the scenario is made of.

Installed code goes by name. So does a module of the user's that a worker can import from the same file. All
else goes by value: what is defined in ``__main__``, in a function, in a notebook cell, or in a test module
(whose assertions pytest has rewritten, which importing it again would lose).
"""

from __future__ import annotations

import importlib.machinery
import io
import linecache
import os
import pickle
import sys
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle

from meshsim.errors import UsageError
from meshsim.worlds.base import RunRequest
from meshsim.worlds.gloo.arriving import (
    code_from_file,
    finish_class,
    import_by_file,
    import_by_name,
    itself,
)
from meshsim.worlds.gloo.installed import is_installed
from meshsim.worlds.gloo.unsendable import blame

_reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]


@dataclass
class Parcel:
    """A packed request. ``classes`` are those that went by value; a worker refers to them by their number."""

    data: bytes
    classes: dict[int, type] = field(default_factory=dict)


def pack_request(request: RunRequest) -> Parcel:
    """Pack, or refuse with a UsageError that names what can't be sent."""
    file = io.BytesIO()
    packer = RequestPickler(file)
    try:
        packer.dump(request)
    except Exception as error:
        raise UsageError(f"can't send the scenario to worker processes: {_blame(request, error)}") from error
    finally:
        packer.finish()
    return Parcel(packer.sources() + file.getvalue(), packer.classes)


def _blame(request: RunRequest, error: Exception) -> str:
    def can_be_sent(value: Any) -> bool:
        packer = RequestPickler(io.BytesIO())
        try:
            packer.dump(value)
        except Exception:  # noqa: BLE001 - any refusal counts
            return False
        finally:
            packer.finish()
        return True

    return blame(
        {"scenario": request.scenario, "params": request.params, "faults": request.faults}, can_be_sent, error
    )


class RequestPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle that keeps source files, and knows which modules a worker can import."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.classes: dict[int, type] = {}
        self._numbers: dict[type, int] = {}
        self._by_value: set[ModuleType] = set()
        self._asked: set[str] = set()
        self._files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            self._files.add(obj.co_filename)
            return code_from_file, (obj.co_filename, *_reduce_code(obj)[1])
        if isinstance(obj, ModuleType):
            return self._reduce_module(obj)
        if isinstance(obj, FunctionType) and "meshsim_sent_as" in vars(obj):
            return itself, (vars(obj)["meshsim_sent_as"],)
        module = getattr(obj, "__module__", None)
        if isinstance(module, str) and (isinstance(obj, type) or hasattr(obj, "__code__")):
            self._consider(module)
        reduced = super().reducer_override(obj)
        if (
            isinstance(obj, type)
            and isinstance(reduced, tuple)
            and len(reduced) == 6
            and reduced[5] is not None
        ):
            make, arguments, state, items, pairs, set_state = reduced
            return make, arguments, (self._number(obj), set_state, state), items, pairs, finish_class
        return reduced

    def finish(self) -> None:
        """Give cloudpickle's process-wide register back as it was."""
        for module in self._by_value:
            cloudpickle.unregister_pickle_by_value(module)
        self._by_value.clear()

    def sources(self) -> bytes:
        """A pickle that makes the source of code without a file (a notebook's cell) known to the worker."""
        lines = {
            name: linecache.cache[name]
            for name in self._files
            if name in linecache.cache and not os.path.exists(name) and len(linecache.cache[name]) == 4
        }
        return pickle.dumps(lines)

    def _number(self, kind: type) -> int:
        number = self._numbers.setdefault(kind, len(self._numbers))
        self.classes[number] = kind
        return number

    def _consider(self, name: str) -> None:
        """Have a module's functions and classes sent by value where the worker can't import the same ones."""
        if name in self._asked or name == "__main__":
            return
        self._asked.add(name)
        module = sys.modules.get(name)
        if (
            isinstance(module, ModuleType)
            and module.__name__ == name
            and module.__name__ not in cloudpickle.list_registry_pickle_by_value()
            and not is_importable(name)
        ):
            cloudpickle.register_pickle_by_value(module)
            self._by_value.add(module)

    def _reduce_module(self, module: ModuleType) -> Any:
        name, file = module.__name__, getattr(module, "__file__", None)
        if sys.modules.get(name) is not module or (file is None and not is_importable(name)):
            return NotImplemented
        if is_findable(name):
            return import_by_name, (name,)
        return import_by_file, (name, file, list(getattr(module, "__path__", [])) or None)


def is_importable(name: str) -> bool:
    """Whether importing ``name`` in a worker gives what this process has under that name."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is not None and is_installed(file):
        return True
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    if type(loader).__module__.startswith("_pytest."):
        return False
    return is_findable(name)


def is_findable(name: str) -> bool:
    """Whether the import system finds the very file that this process has loaded under ``name``."""
    module = sys.modules.get(name)
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    if file is not None and is_installed(file):
        return True
    if file is None:
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        return origin in ("built-in", "frozen") or (hasattr(module, "__path__") and _search(name) is not None)
    spec = _search(name)
    return spec is not None and spec.origin is not None and _same_file(spec.origin, file)


def _search(name: str) -> importlib.machinery.ModuleSpec | None:
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        if not is_findable(parent):
            return None
        path = getattr(sys.modules[parent], "__path__", None)
    for finder in sys.meta_path:
        if type(finder).__module__.startswith("_pytest."):
            continue
        find = getattr(finder, "find_spec", None)
        spec: importlib.machinery.ModuleSpec | None = find(name, path) if find is not None else None
        if spec is not None:
            return spec
    return None


def _same_file(one: str, other: str) -> bool:
    return os.path.abspath(one) == os.path.abspath(other)
