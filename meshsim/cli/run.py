"""``meshsim run``: a scenario on topologies, in one world or several."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from meshsim.cli.exit_codes import ExitCode
from meshsim.errors import UsageError


def run_command(
    target: Annotated[
        str, typer.Argument(help="path.py::name, module:name, or a built-in scenario (see meshsim list)")
    ],
    topology: Annotated[
        list[str] | None,
        typer.Option("--topology", "-t", help="such as dp=2,tp=2; may be given several times"),
    ] = None,
    world_sizes: Annotated[
        str | None,
        typer.Option(
            "--world-sizes", help="rank counts such as 8, 1-8 or 1,2,4-6; all their topologies are run"
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option("--axes", help="axes to split with --world-sizes: dp_shard,tp or dp=1,2,tp=4"),
    ] = None,
    cover: Annotated[
        list[str] | None,
        typer.Option(
            "--cover",
            help="all topologies; or a number N: a selection with every valid combination of N axis sizes; "
            "or each: one topology a rank count. BACKEND=... sets it for one backend",
        ),
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", "-b", help="fake (default), gloo, nccl, hccl or auto; may be given several times"
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="of the schedule and of the scenario's random numbers")
    ] = 0,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds for each run")] = 60.0,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="name=value for ctx.params; the value is JSON or text")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault", help="inject a fault, such as rank=3:crash@all_reduce#5; may be given several times"
        ),
    ] = None,
    shuffle_reductions: Annotated[
        bool,
        typer.Option(
            "--shuffle-reductions", help="in the fake world: reduce in an order drawn from the seed"
        ),
    ] = False,
    profile: Annotated[
        str | None, typer.Option("--profile", help="apply the limits of nccl or hccl while running on CPU")
    ] = None,
    order: Annotated[
        str | None, typer.Option("--order", help="rank order, outermost axis first; default pp,dp,cp,tp")
    ] = None,
    record: Annotated[
        str | None, typer.Option("--record", help="write a recording of the run, for `meshsim replay`")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", help="write all results to this file")] = None,
    trace_file: Annotated[
        str | None, typer.Option("--trace", help="write the calls of all ranks as a Chrome/Perfetto trace")
    ] = None,
    flight_recorder: Annotated[
        str | None,
        typer.Option(
            "--flight-recorder",
            help="write Flight Recorder dumps into this folder, for torch's own analyser (torchfrtrace)",
        ),
    ] = None,
    junit_file: Annotated[str | None, typer.Option("--junit", help="write a JUnit XML file")] = None,
    report_file: Annotated[
        str | None,
        typer.Option("--report", help="write one HTML page: grid of verdicts, and each run with its mesh"),
    ] = None,
) -> int:
    """Run a scenario on every rank of one topology or of many; of one rank without any."""
    from meshsim.cli.console import show_results, with_progress
    from meshsim.runner import resolve_scenario
    from meshsim.selection import Chosen, choose
    from meshsim.sweeps import SweepResult, run_each, supported_by
    from meshsim.topologies import parse_order
    from meshsim.worlds.registry import check_backend, world_for

    backends = [check_backend(one) for one in backend or ["fake"]]
    worlds = [world_for(one) for one in backends]
    scenario, name = resolve_scenario(target)
    covers = _covers(cover or [], backends)
    options: dict[str, Any] = {
        "seed": seed,
        "timeout": timeout,
        "params": _params(param or []),
        "faults": fault or [],
        "profile": profile,
        "shuffle_reductions": shuffle_reductions,
        "order": parse_order(order),
    }
    for path in (json_file, trace_file, junit_file, report_file, record):
        _check_writable(path)
    chosen: dict[str, Sequence[Chosen]] = {
        one: choose(
            world_sizes=world_sizes,
            topologies=topology or ([""] if world_sizes is None else None),
            axes=axes,
            cover=covers[one],
            supports=supported_by(scenario, options),
            job_size=getattr(world, "world_size", None),
        )
        for one, world in zip(backends, worlds, strict=True)
    }
    if not any(chosen.values()):
        raise UsageError("no topology of these axes fits any of these world sizes")
    if record is not None:
        options["record"] = _only_run(record, sum(map(len, chosen.values())))
    if flight_recorder is not None:
        _check_dump_folder(flight_recorder, sum(map(len, chosen.values())))

    def every_run() -> Iterator[Any]:
        for one, topologies in chosen.items():
            # A recording keeps the scenario's text.
            yield from run_each(target if record else scenario, topologies, name=name, backend=one, **options)

    swept = SweepResult([])
    try:
        for result in with_progress(every_run(), total=sum(map(len, chosen.values()))):
            swept.results.append(result)
    finally:
        if swept.results:
            show_results(swept.results)
    _show_failures(swept)
    _write_files(swept, json_file, trace_file, junit_file, report_file)
    if flight_recorder is not None:
        from meshsim.reports.flight_recorder import write_flight_recorders

        write_flight_recorders(flight_recorder, swept.results)
    if swept.failed:
        return ExitCode.FAILED
    return ExitCode.PASSED if swept.ok else ExitCode.CANNOT_RUN


_FAILURES_SHOWN = 5


def _show_failures(swept: Any) -> None:
    from meshsim.cli.console import write
    from meshsim.reports.failure_text import failure_text, headline

    for result in swept.failed[:_FAILURES_SHOWN]:
        write("\n" + failure_text(result))
    for result in swept.failed[_FAILURES_SHOWN:]:
        write("\n" + headline(result))
    for result in swept.results:
        if result.ok and result.verdict.warnings:
            lines = [f"warning: {warning.summary}" for warning in result.verdict.warnings]
            write(f"\n{result.topology} on {result.backend}\n" + "\n".join(lines))


def _write_files(
    swept: Any,
    json_file: str | None,
    trace_file: str | None,
    junit_file: str | None,
    report_file: str | None,
) -> None:
    from meshsim.reports.chrome_trace import chrome_trace
    from meshsim.reports.files import write_json, write_text
    from meshsim.reports.html import write_html
    from meshsim.reports.junit import junit_xml

    if json_file:
        write_json(json_file, swept.to_json())
    if trace_file:
        write_json(trace_file, chrome_trace(swept.results))
    if junit_file:
        write_text(junit_file, junit_xml(swept.results))
    if report_file:
        write_html(report_file, swept.results)


def _only_run(record: str, runs: int) -> str:
    if runs != 1:
        raise UsageError(
            f"--record {record} is the file of one run, and {runs} are asked for: give one --topology"
        )
    return record


def _check_writable(path: str | None) -> None:
    from meshsim.reports.files import check_writable

    if path is not None:
        check_writable(path)


def _check_dump_folder(path: str, runs: int) -> None:
    from meshsim.reports.flight_recorder import check_flight_recorder_folder

    check_flight_recorder_folder(path, only_run=runs == 1)


def _covers(texts: Sequence[str], backends: Sequence[str]) -> dict[str, int | str | None]:
    """Each backend's cover: ``BACKEND=value`` where it is named, else the plain value, else all."""
    plain: str | None = None
    named: dict[str, str] = {}
    for text in texts:
        backend, equals, value = text.rpartition("=")
        if not equals:
            plain = value
        elif backend in backends:
            named[backend] = value
        else:
            raise UsageError(
                f"--cover {text}: no --backend {backend} is run; those run are {', '.join(backends)}"
            )
    found: dict[str, int | str | None] = {}
    for backend in backends:
        text_of = named.get(backend, plain)
        found[backend] = int(text_of) if text_of is not None and text_of.isdecimal() else text_of
    return found


def _params(texts: Sequence[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(
                f"--param {text!r} has no value; write it as name=value, such as --param steps=3"
            )
        try:
            params[name.strip()] = json.loads(value)
        except ValueError:
            params[name.strip()] = value
    return params
