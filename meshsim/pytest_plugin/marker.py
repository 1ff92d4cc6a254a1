"""What ``@pytest.mark.mesh`` says: on which topologies a test runs, and how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from meshlib import MeshError, ParallelDims
from meshsim.errors import UsageError
from meshsim.pytest_plugin.options import MeshOptions

if TYPE_CHECKING:
    from meshlib import MeshPlan

MARKER_HELP = (
    "mesh(topology, ..., topologies=None, world_sizes=None, axes=None, cover=None, backend=None, "
    "timeout=None, seed=None, profile=None): run the test's body on every rank of a mesh, such as "
    "mesh('dp=2,tp=2'); with several topologies the test is run on each"
)

_SELECTION = ("topologies", "world_sizes", "world_size", "axes", "cover")
PLAN_SETTINGS = ("order", "ep_scope", "node_size")
_SETTINGS = ("backend", "timeout", "seed", "profile", "params", "isolate", "faults", *PLAN_SETTINGS)


@dataclass(frozen=True)
class Case:
    """One topology that a test runs on."""

    topology: str
    world_size: int
    id: str


@dataclass(frozen=True)
class MeshMarks:
    """All of a test's ``mesh`` markers together; the nearest one that says something counts."""

    cases: tuple[Case, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_marks(marks: Sequence[pytest.Mark], options: MeshOptions, without: Case | None = None) -> MeshMarks:
    """Resolve markers, nearest first, under the command line's options.

    ``without`` is the case of a test whose markers name no topology, where that is right.

    UsageError or ``meshlib.MeshError`` for a marker that is wrong.
    """
    selection: dict[str, Any] | None = None
    settings: dict[str, Any] = {}
    for mark in marks:
        given, own_settings = _split(mark)
        if given and selection is None:
            selection = given
        settings = {**own_settings, **settings}
    selection = _overridden(selection or {}, options)
    if not selection and without is not None:
        return MeshMarks((without,), settings)
    cases = tuple(_cases(selection, settings.get("ep_scope", "stage")))
    if not cases:
        raise UsageError("@pytest.mark.mesh: no topology of these axes fits any of these world sizes")
    _check_settings(settings, cases[0])
    return MeshMarks(cases, settings)


def _split(mark: pytest.Mark) -> tuple[dict[str, Any], dict[str, Any]]:
    given = {name: value for name, value in mark.kwargs.items() if value is not None}
    unknown = sorted(set(given) - {*_SELECTION, *_SETTINGS, "topology"})
    if unknown:
        raise UsageError(
            f"@pytest.mark.mesh has no {', '.join(unknown)}; it takes topologies such as 'dp=2,tp=2', "
            f"{', '.join((*_SELECTION, *_SETTINGS))}"
        )
    settings = {name: given.pop(name) for name in _SETTINGS if name in given}
    listed = [*mark.args, *([given.pop("topology")] if "topology" in given else [])]
    if listed and "topologies" in given:
        raise UsageError("@pytest.mark.mesh: give topologies as arguments or as topologies=, not both")
    if listed:
        given["topologies"] = [one for value in listed for one in _one_or_more(value)]
    return given, settings


def _one_or_more(value: Any) -> list[Any]:
    if isinstance(value, str | ParallelDims):
        return [value]
    if isinstance(value, Iterable):
        return list(value)
    raise UsageError(
        f"@pytest.mark.mesh takes topologies such as 'dp=2,tp=2', got {type(value).__name__}: {value!r}; "
        "for rank counts write world_sizes=range(1, 9)"
    )


def _overridden(selection: dict[str, Any], options: MeshOptions) -> dict[str, Any]:
    """The command line names other topologies: of the marker only how to choose among them is left."""
    if options.topologies:
        return {"topologies": list(options.topologies)}
    if options.world_sizes is not None:
        kept = {name: value for name, value in selection.items() if name in ("axes", "cover")}
        return {**kept, "world_sizes": options.world_sizes}
    return selection


def _cases(selection: Mapping[str, Any], ep_scope: str) -> Iterable[Case]:
    selection = dict(selection)
    if "world_size" in selection:
        if "world_sizes" in selection:
            raise UsageError("@pytest.mark.mesh: give world_size or world_sizes, not both")
        selection["world_sizes"] = [selection.pop("world_size")]
        selection.setdefault("topologies", [""])
    given = selection.get("topologies")
    if given is None and "world_sizes" not in selection:
        raise UsageError(
            "@pytest.mark.mesh names no topology; write @pytest.mark.mesh('dp=2,tp=2') or "
            "@pytest.mark.mesh(world_sizes=range(1, 9)), or give --mesh-topology"
        )
    if given is not None and not {"axes", "cover", "world_sizes"} & set(selection):
        # Most tests: nothing to choose from, so the machinery of choosing needn't be imported.
        chosen = [(dims, dims.own_world_size()) for dims in map(ParallelDims.of, _one_or_more(given))]
        if not chosen:
            raise UsageError("@pytest.mark.mesh: topologies is empty; give at least one, such as 'dp=2,tp=2'")
        for dims, size in chosen:
            dims.resolve(size, ep_scope=ep_scope)
    else:
        from meshsim.selection import choose

        chosen = choose(**selection, ep_scope=ep_scope)
    return _named(chosen)


def _named(chosen: Sequence[tuple[ParallelDims, int]]) -> Iterable[Case]:
    texts = [str(dims) or f"dp={size}" for dims, size in chosen]
    for text, (_, size) in zip(texts, chosen, strict=True):
        ambiguous = texts.count(text) > 1 if len(texts) <= 1000 else False
        yield Case(text, size, f"{text}@{size}" if ambiguous else text)


def _check_settings(settings: Mapping[str, Any], case: Case) -> None:
    """Refuse at collection what the run would refuse."""
    from meshsim.runner import build_request
    from meshsim.worlds.registry import BACKENDS

    backend = settings.get("backend")
    if backend is not None and backend not in (*BACKENDS, "auto"):
        raise UsageError(f"backend {backend!r} is unknown; known are {', '.join(BACKENDS)} and auto")
    if settings:
        options = {name: value for name, value in settings.items() if name not in ("backend", *PLAN_SETTINGS)}
        build_request(len, plan_of(case, settings), **options)


def plan_of(case: Case, settings: Mapping[str, Any]) -> MeshPlan:
    """The plan of one of a test's topologies."""
    from meshsim.topologies import build_plan

    options = {name: settings[name] for name in PLAN_SETTINGS if name in settings}
    return build_plan(case.topology, case.world_size, **options)


WRONG_MARKS = (UsageError, MeshError)
"""What :func:`read_marks` raises."""
