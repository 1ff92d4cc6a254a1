"""``meshsim.run``: one scenario on one topology in one world."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from meshsim.errors import CannotRun, RunFailed, UsageError
from meshsim.failure import qualified_name
from meshsim.report import RankReport, RankState
from meshsim.reports.files import check_writable
from meshsim.result import RunResult
from meshsim.topologies import build_plan, default_world_size, parse_dims, topology_text
from meshsim.verdict import Verdict, VerdictKind
from meshsim.worlds.base import RunRequest, World
from meshsim.worlds.registry import BACKENDS, world_for

if TYPE_CHECKING:
    from meshlib import MeshPlan, ParallelDims

PROFILES = ("nccl", "hccl")


def run(
    scenario: Callable[..., Any] | str,
    topology: str | ParallelDims | None = None,
    *,
    backend: str | World = "fake",
    world_size: int | None = None,
    seed: int = 0,
    timeout: float = 60.0,
    isolate: Sequence[str] = (),
    profile: str | None = None,
    params: Mapping[str, Any] | None = None,
    faults: Sequence[Any] = (),
    record: str | os.PathLike[str] | None = None,
    raises: bool = False,
    order: Any = None,
    ep_scope: str = "stage",
    node_size: int | None = None,
    shuffle_reductions: bool = False,
) -> RunResult:
    """Run ``scenario`` on every rank of ``topology`` and say what came of it.

    ``scenario`` is a callable that takes a ``RankContext``, or the text of one: ``path.py::name``,
    ``module:name`` or a built-in scenario's name. ``topology`` is text such as ``"dp=2,tp=2"`` or
    ``ParallelDims``; without ``world_size`` its own sizes make the world (an unset dp is 1, or what
    dp_replicate * dp_shard ask for; in a job that a launcher started it follows from the job's ranks).
    ``backend`` is ``fake``, ``gloo``, ``nccl``, ``hccl``, ``auto``, or a world of your own.

    ``timeout`` is the deadline in seconds. ``isolate`` names modules of which each rank gets its own globals.
    ``profile`` (``nccl``, ``hccl``) applies a backend's limits while running on CPU. ``params`` reach the
    scenario as ``ctx.params``. ``faults`` are injected, each as text such as ``rank=3:crash@all_reduce#5``.
    ``record`` is a file that a recording of the run is written to, for ``meshsim.replay``. In the fake world
    ``shuffle_reductions`` reduces in an order drawn from the seed, not in rank order. ``order``, ``ep_scope``
    and ``node_size`` are those of ``MeshPlan.build``.

    A scenario that fails is a result, not an exception, unless ``raises`` is true (``RunFailed``). Wrong use
    is an exception always: ``UsageError``, ``meshlib.MeshError``, or ``CannotRun`` where this machine can't
    do it.
    """
    from meshsim.recordings.recording import Recording, check_recordable

    target, name = resolve_scenario(scenario)
    world = world_of(backend)
    if world_size is None:
        world_size = default_world_size(parse_dims(topology), getattr(world, "world_size", None))
    plan = build_plan(topology, world_size, order=order, ep_scope=ep_scope, node_size=node_size)
    request = build_request(
        target,
        plan,
        seed=seed,
        timeout=timeout,
        params=params,
        isolate=isolate,
        profile=profile,
        faults=faults,
        shuffle_reductions=shuffle_reductions,
    )
    if record is not None:
        check_writable(record)
        check_recordable(request.params)
    text = topology_text(parse_dims(topology), plan.world_size)
    result = run_request(request, world, name=name, topology=text)
    _pass_on_wrong_use(result.ranks)
    if record is not None and result.is_complete:
        Recording.of(result, request, target=_text(scenario), name=name).write(record)
    if raises and not result.ok:
        raise RunFailed(result) from _first_exception(result)
    return result


def build_request(
    scenario: Callable[..., Any],
    plan: MeshPlan,
    *,
    seed: int = 0,
    timeout: float = 60.0,
    params: Mapping[str, Any] | None = None,
    isolate: Sequence[str] = (),
    profile: str | None = None,
    faults: Sequence[Any] = (),
    shuffle_reductions: bool = False,
) -> RunRequest:
    """A checked request; UsageError for an option that can't be right."""
    return RunRequest(
        scenario=scenario,
        plan=plan,
        seed=_check_seed(seed),
        timeout=_check_timeout(timeout),
        params=_check_params(params),
        isolate=_check_isolate(isolate),
        profile=_check_profile(profile),
        faults=_check_faults(faults, plan),
        shuffle_reductions=bool(shuffle_reductions),
    )


def run_request(request: RunRequest, world: World, *, name: str = "", topology: str = "") -> RunResult:
    """Run a checked request in a world and judge what the ranks did."""
    from meshsim.checker.judge import judge
    from meshsim.checker.needs import lacking

    result = RunResult(
        verdict=Verdict(VerdictKind.PASSED, ""),
        backend=world.backend,
        topology=topology,
        world_size=request.world_size,
        plan=request.plan,
        scenario=name,
        seed=request.seed,
        params=dict(request.params),
    )
    reason = why_unsupported(request.scenario, request.plan)
    if reason is None:
        missing = lacking(request.scenario, _capable(world.backend), request.profile)
        reason = f"unsupported: {missing}" if missing else None
    if reason:
        result.verdict = Verdict(VerdictKind.NOT_RUN, reason)
        return result
    report = world.run(request)
    result.ranks = report.ranks
    result.duration = report.duration

    def verdict() -> Verdict:
        return judge(
            request.plan, report, backend=world.backend, profile=request.profile, faults=request.faults
        )

    conclude = getattr(world, "conclude", None)
    result.verdict = verdict() if conclude is None else conclude(report, verdict)
    result.is_complete = getattr(world, "is_first", True)
    return result


def _pass_on_wrong_use(ranks: Sequence[RankReport]) -> None:
    """Wrong use that only the scenario can see (a parameter that it doesn't know) is the caller's mistake."""
    # In a job a rank besides the first knows only its own failure.
    failures = [report.failure for report in ranks if report.failure is not None]
    if not failures or any(report.state is not RankState.RAISED for report in ranks):
        return
    for kind in (UsageError, CannotRun):
        if all(failure.type == qualified_name(kind) for failure in failures):
            raise kind(failures[0].message)


def _capable(backend: str) -> str | None:
    """The backend by which a world's capabilities are known; None of a world of the caller's own."""
    return backend if backend in BACKENDS else None


def resolve_scenario(scenario: Callable[..., Any] | str) -> tuple[Callable[..., Any], str]:
    """The callable and the name to show for it."""
    if isinstance(scenario, str):
        from meshsim.scenarios import load

        return _checked_scenario(load(scenario), scenario), scenario
    if not callable(scenario):
        raise UsageError(
            "scenario must be a function that takes the rank's context, or text such as 'file.py::name'; "
            f"got {type(scenario).__name__}: {scenario!r}"
        )
    name = str(getattr(scenario, "__qualname__", None) or type(scenario).__qualname__)
    return _checked_scenario(scenario, name), name


def _checked_scenario(scenario: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Refuse what can't be called with the rank's context, and what only makes an object of its body."""
    for kind, is_kind in (
        ("an async function", inspect.iscoroutinefunction),
        ("an async generator", inspect.isasyncgenfunction),
        ("a generator", inspect.isgeneratorfunction),
    ):
        if is_kind(scenario):
            raise UsageError(
                f"scenario {name} is {kind}: calling it doesn't run its body; use a plain function"
            )
    try:
        inspect.signature(scenario).bind(None)
    except TypeError as error:
        raise UsageError(
            f"scenario {name} must take one argument, the rank's context: def {name}(ctx); {error}"
        ) from None
    except ValueError:  # a callable without a signature, written in C
        pass
    return scenario


def why_unsupported(scenario: Callable[..., Any], plan: MeshPlan) -> str | None:
    """The reason that a scenario gives for not running on a plan: its ``unsupported(plan)``, if any."""
    answer = getattr(scenario, "unsupported", None)
    reason = answer(plan) if callable(answer) else None
    return str(reason) if reason else None


def _first_exception(result: RunResult) -> BaseException | None:
    for rank in result.verdict.ranks:
        failure = result.ranks[rank].failure if rank < len(result.ranks) else None
        if failure is not None and failure.exception is not None:
            return failure.exception
    return None


def _text(scenario: Callable[..., Any] | str) -> str | None:
    return scenario if isinstance(scenario, str) else None


def world_of(backend: str | World) -> World:
    """The world of a backend's name, or the world given; CannotRun where this machine can't run it."""
    if isinstance(backend, str):
        return world_for(backend)
    if not callable(getattr(backend, "run", None)) or not callable(getattr(backend, "unavailable", None)):
        raise UsageError(
            f"backend must be a backend's name or a world, not {type(backend).__name__}: {backend!r}"
        )
    reason = backend.unavailable()
    if reason:
        raise CannotRun(f"{backend.backend}: {reason}")
    return backend


def _check_seed(seed: Any) -> int:
    if not isinstance(seed, bool):
        try:
            number = index(seed)
        except TypeError:
            pass
        else:
            if 0 <= number < 2**63:
                return number
    raise UsageError(f"seed must be a whole number from 0 to 2**63 - 1, got {seed!r}")


def _check_timeout(timeout: Any) -> float:
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < math.inf:
        return float(timeout)
    raise UsageError(f"timeout must be a positive, finite number of seconds, got {timeout!r}")


def _check_params(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, Mapping) and all(isinstance(key, str) for key in params):
        return dict(params)
    raise UsageError(f"params must be a mapping from names to values, such as {{'lr': 0.1}}, got {params!r}")


def _check_isolate(isolate: Any) -> tuple[str, ...]:
    if (
        not isinstance(isolate, str)
        and isinstance(isolate, Sequence)
        and all(isinstance(m, str) for m in isolate)
    ):
        return tuple(isolate)
    raise UsageError(f"isolate must be a list of module names, such as ['package.module'], got {isolate!r}")


def _check_faults(faults: Any, plan: MeshPlan) -> tuple[Any, ...]:
    from meshsim.faults import parse_faults

    if isinstance(faults, str) or not isinstance(faults, Sequence):
        raise UsageError(f"faults must be a list, such as ['rank=3:crash@all_reduce#5'], got {faults!r}")
    return parse_faults(faults, plan)


def _check_profile(profile: Any) -> str | None:
    if profile is None or profile in PROFILES:
        return profile  # type: ignore[no-any-return]
    raise UsageError(f"profile {profile!r} is unknown; known are {', '.join(PROFILES)}")
