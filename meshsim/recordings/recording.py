"""A recording: what was run, and what came of it, as one JSON file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshsim.errors import UsageError
from meshsim.recordings.source import source_digest, target_of
from meshsim.reports.files import write_json
from meshsim.reports.values import to_json_value
from meshsim.result import RunResult
from meshsim.trace import TraceEvent

if TYPE_CHECKING:
    from meshsim.worlds.base import RunRequest

FORMAT = "meshsim recording"
SCHEMA_VERSION = 1

COMPARED = (
    "op",
    "group",
    "axis",
    "number",
    "dtype",
    "shapes",
    "numel",
    "reduce_op",
    "root",
    "peer",
    "tag",
    "splits",
    "async_op",
    "note",
)
"""What of a call is kept and compared."""
_DEFAULTS = TraceEvent(rank=0, index=0, op="", group=())


@dataclass(frozen=True)
class Recording:
    """The content of a file; ``plan``, ``verdict``, ``returns`` and ``trace`` as the file has them."""

    target: str | None
    """The scenario as text; None for a function that only its caller can name."""
    name: str
    digest: str | None
    plan: dict[str, Any]
    topology: str
    seed: int
    timeout: float
    params: dict[str, Any]
    isolate: tuple[str, ...]
    profile: str | None
    faults: tuple[str, ...]
    shuffle_reductions: bool
    backend: str
    verdict: dict[str, Any]
    returns: list[Any]
    trace: list[list[dict[str, Any]]]
    written_by: dict[str, str] = field(default_factory=dict)
    path: Path | None = None
    """The file that it was read from."""

    @property
    def world_size(self) -> int:
        return int(self.plan["world_size"])

    @classmethod
    def of(cls, result: RunResult, request: RunRequest, *, target: str | None, name: str) -> Recording:
        """The recording of a run. ``target`` is the scenario's text, where it was given as text."""
        data = result.to_json()
        return cls(
            target=target or target_of(request.scenario),
            name=name,
            digest=source_digest(request.scenario),
            plan=json.loads(json.dumps(request.plan.to_json())),
            topology=result.topology,
            seed=request.seed,
            timeout=request.timeout,
            params=dict(request.params),
            isolate=tuple(request.isolate),
            profile=request.profile,
            faults=tuple(str(fault) for fault in request.faults),
            shuffle_reductions=request.shuffle_reductions,
            backend=result.backend,
            verdict=data["verdict"],
            returns=data["returns"],
            trace=[
                [call_json(event) for event in calls if not event.internal] for calls in result.trace.events
            ],
            written_by=_versions(),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "written_by": self.written_by,
            "scenario": {"target": self.target, "name": self.name, "digest": self.digest},
            "plan": self.plan,
            "topology": self.topology,
            "world_size": self.world_size,
            "seed": self.seed,
            "timeout": self.timeout,
            "params": self.params,
            "isolate": list(self.isolate),
            "profile": self.profile,
            "faults": list(self.faults),
            "shuffle_reductions": self.shuffle_reductions,
            "backend": self.backend,
            "verdict": self.verdict,
            "returns": self.returns,
            "trace": self.trace,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_json())


def check_recordable(params: Mapping[str, Any]) -> None:
    """Refuse parameters that would not come back from JSON as they are."""
    for name, value in params.items():
        if to_json_value(value) != value:
            raise UsageError(
                f"can't record params[{name!r}] = {value!r}: a recording holds what JSON holds "
                "(numbers, text, lists, mappings with text keys, true, false, null)"
            )


def call_json(event: TraceEvent) -> dict[str, Any]:
    """A call as the file keeps it."""
    kept = {name: getattr(event, name) for name in COMPARED}
    data = {
        name: value
        for name, value in kept.items()
        if name in ("op", "group") or value != getattr(_DEFAULTS, name)
    }
    if event.site is not None:
        data["site"] = str(event.site)
    return dict(to_json_value(data))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    import torch

    return {
        "meshsim": version("meshsim"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Read a recording. UsageError in one line for anything that isn't one of a known schema."""
    file = Path(path)
    data = _load(file)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{file} is no recording: make one with `meshsim run TARGET --record {file.name}`")
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{file} has recording schema {version!r}; this meshsim reads {SCHEMA_VERSION}: "
            "replay it with the meshsim that wrote it "
            f"({_writer(data)}), or record the run again"
        )
    from meshsim.recordings.schema import first_problem

    problem = first_problem(data)
    if problem is not None:
        raise UsageError(f"{file} is damaged: {problem}")
    if not len(data["trace"]) == len(data["returns"]) == data["world_size"] == data["plan"]["world_size"]:
        raise UsageError(
            f"{file} is damaged: its plan has {data['plan']['world_size']} ranks, "
            f"it says {data['world_size']}, and has traces of {len(data['trace'])} "
            f"and returns of {len(data['returns'])}"
        )
    return _from_json(data, file)


def _load(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no file {file}") from None
    except IsADirectoryError:
        raise UsageError(f"{file} is a folder; give a recording's file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"can't read {file}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{file} is no recording: it isn't JSON ({error})") from None


def _writer(data: Mapping[str, Any]) -> str:
    written_by = data.get("written_by")
    name = written_by.get("meshsim") if isinstance(written_by, Mapping) else None
    return f"meshsim {name}" if name else "version unknown"


def _from_json(data: dict[str, Any], path: Path) -> Recording:
    scenario = data["scenario"]
    return Recording(
        target=scenario["target"],
        name=scenario["name"],
        digest=scenario["digest"],
        plan=data["plan"],
        topology=data["topology"],
        seed=data["seed"],
        timeout=data["timeout"],
        params=data["params"],
        isolate=tuple(data["isolate"]),
        profile=data["profile"],
        faults=tuple(data["faults"]),
        shuffle_reductions=data.get("shuffle_reductions", False),
        backend=data["backend"],
        verdict=data["verdict"],
        returns=data["returns"],
        trace=data["trace"],
        written_by=data["written_by"],
        path=path,
    )
