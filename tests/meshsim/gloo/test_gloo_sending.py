"""Any scenario can be sent, wherever it is defined; what can't be sent is named before anything starts."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshsim.errors import UsageError

SCALE = 10


def doubled_rank(ctx: Any) -> int:
    return int(ctx.rank) * 2


class Multiplier:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def times(self, ctx: Any) -> int:
        return int(ctx.rank) * self.factor

    def __call__(self, ctx: Any) -> int:
        return self.times(ctx)


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int


class OwnError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnError, (self.code,)


def scaled(ctx: Any, factor: int, *, plus: int = 0) -> int:
    return int(ctx.rank) * factor + plus


def local_function() -> Callable[..., Any]:
    offset = 100

    def scenario(ctx: Any) -> int:
        return int(ctx.rank) + offset

    return scenario


def local_class() -> Callable[..., Any]:
    class Base:
        def value(self) -> int:
            return 1

    class Derived(Base):
        def value(self) -> int:
            return super().value() + SCALE

    return lambda ctx: Derived().value() + int(ctx.rank)


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        pytest.param(doubled_rank, [0, 2], id="module-function"),
        pytest.param(lambda ctx: ctx.rank + SCALE, [10, 11], id="lambda"),
        pytest.param(local_function(), [100, 101], id="local-function"),
        pytest.param(local_class(), [11, 12], id="local-class"),
        pytest.param(functools.partial(scaled, factor=3, plus=1), [1, 4], id="partial"),
        pytest.param(Multiplier(5).times, [0, 5], id="bound-method"),
        pytest.param(Multiplier(7), [0, 7], id="callable-object"),
        pytest.param(lambda ctx: Colour.RED.value + ctx.rank, [1, 2], id="enum"),
    ],
)
def test_any_callable_runs(values: Any, scenario: Callable[..., Any], expected: list[int]) -> None:
    assert values(scenario) == expected


def test_params_arrive(values: Any) -> None:
    got = values(
        lambda ctx: (ctx.params["point"].x, ctx.params["t"].sum().item()),
        params={
            "point": Point(4),
            "t": torch.arange(4.0),
        },
    )
    assert got == [(4, 6.0), (4, 6.0)]


def test_returned_objects_are_of_this_process_own_classes(values: Any) -> None:
    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

    methods = Point.__init__, Local.__init__
    got = values(lambda ctx: (Point(ctx.rank), Colour.RED, Local(ctx.rank + 5)))
    assert [(point, colour, local.x) for point, colour, local in got] == [
        (Point(0), Colour.RED, 5),
        (Point(1), Colour.RED, 6),
    ]
    assert {(type(point), type(colour), type(local)) for point, colour, local in got} == {
        (Point, Colour, Local)
    }
    assert (Point.__init__, Local.__init__) == methods


def test_exception_of_the_test_module_comes_back_as_itself(run: Any) -> None:
    def scenario(ctx: Any) -> None:
        raise OwnError(7)

    failure = run(scenario, 1).ranks[0].failure
    assert type(failure.exception) is OwnError
    assert failure.exception.code == 7
    assert failure.type.endswith("OwnError")


def test_instances_of_test_classes_travel_between_ranks(values: Any) -> None:
    def scenario(ctx: Any) -> list[int]:
        points: list[Any] = [None] * ctx.world_size
        dist.all_gather_object(points, Point(ctx.rank))
        return [point.x for point in points]

    assert values(scenario) == [[0, 1], [0, 1]]


def test_traceback_shows_the_users_file_and_source(run: Any) -> None:
    def scenario(ctx: Any) -> None:
        wanted = "this very line"
        raise ValueError(wanted)

    failure = run(scenario, 1).ranks[0].failure
    assert failure.site.file == __file__
    assert failure.site.text == "raise ValueError(wanted)"
    assert failure.site.line == scenario.__code__.co_firstlineno + 2
    assert "raise ValueError(wanted)" in failure.traceback
    assert "meshsim" not in failure.traceback.replace(__file__, "")


def test_call_sites_in_the_trace_are_the_users(run: Any) -> None:
    def scenario(ctx: Any) -> None:
        dist.all_reduce(torch.ones(1))

    report = run(scenario, 2)
    sites = [event.site for event in report.ranks[1].trace if event.op == "all_reduce"]
    assert [(site.file, site.line) for site in sites] == [(__file__, scenario.__code__.co_firstlineno + 1)]


_lock = threading.Lock()


def test_closure_variable_that_cannot_be_sent_is_named(run: Any) -> None:
    guard = threading.Lock()

    def scenario(ctx: Any) -> None:
        with guard:
            pass

    with pytest.raises(UsageError, match=r"scenario: closure variable 'guard' is a .*lock"):
        run(scenario)


def test_global_that_cannot_be_sent_is_named(run: Any) -> None:
    def scenario(ctx: Any) -> None:
        with _lock:
            pass

    with pytest.raises(UsageError, match=r"scenario: global variable '_lock' is a .*lock"):
        run(scenario)


def test_parameter_that_cannot_be_sent_is_named_by_its_way(run: Any) -> None:
    with pytest.raises(UsageError, match=r"params\['a'\]\[1\]\.x is a .*lock"):
        run(doubled_rank, params={"a": [0, Point(threading.Lock())]})  # type: ignore[arg-type]


def test_refusal_starts_nothing(run: Any, pool: Any) -> None:
    values_before = {worker.number for worker in pool.workers}
    with pytest.raises(UsageError):
        run(doubled_rank, 7, params={"lock": _lock})
    assert {worker.number for worker in pool.workers} == values_before


def test_return_value_that_cannot_be_sent_fails_its_rank_and_is_named(run: Any) -> None:
    report = run(lambda ctx: {"lock": threading.Lock()} if ctx.rank == 1 else 1, 2)
    assert [rank.state.value for rank in report.ranks] == ["returned", "raised"]
    assert "return value['lock'] is a _thread.lock" in report.ranks[1].failure.message


def test_changed_module_is_read_afresh(values: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "changing_helper.py"
    results = []
    for text in ("ANSWER = 1", "ANSWER = 22", "ANSWER = 333"):
        file.write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("changing_helper", None)
        results.append(values(imports_changing_helper, 1)[0])
    assert results == [1, 22, 333]


def imports_changing_helper(ctx: Any) -> int:
    import changing_helper  # type: ignore[import-not-found]

    return int(changing_helper.ANSWER)


def test_function_of_an_importable_module_sees_its_module(
    values: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "users_module.py").write_text(
        "import threading\nguard = threading.Lock()\nclass Model:\n    pass\n"
        "def make():\n    return Model()\n"
        "def scenario(ctx):\n    with guard:\n        return isinstance(make(), Model)\n"
    )
    module = importlib.import_module("users_module")
    try:
        assert values(module.scenario, 2) == [True, True]
    finally:
        del sys.modules["users_module"]


def test_module_under_a_name_that_is_not_on_the_path(values: Any, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "BASE = 5\ndef helper():\n    return BASE\ndef scenario(ctx):\n    return helper() + ctx.rank\n"
    )
    spec = importlib.util.spec_from_file_location("some.odd.name", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["some.odd.name"] = module
    try:
        spec.loader.exec_module(module)
        assert values(module.scenario, 2) == [5, 6]
        assert values(lambda ctx: module.helper(), 1) == [5]
    finally:
        del sys.modules["some.odd.name"]


MAIN_PROGRAM = """
import torch.distributed as dist
import meshsim

class Thing:
    def __init__(self, x):
        self.x = x

FACTOR = 3

def helper(x):
    return x * FACTOR

def scenario(ctx):
    things = [None] * ctx.world_size
    dist.all_gather_object(things, Thing(helper(ctx.rank)))
    return things[ctx.rank]

result = meshsim.run(scenario, "dp=2", backend="gloo")
print([thing.x for thing in result.returns], all(isinstance(t, Thing) for t in result.returns))

def failing(ctx):
    raise RuntimeError("in main")

print(meshsim.run(failing, "dp=1", backend="gloo").ranks[0].failure.traceback)
"""


def test_main_program_without_a_main_guard(program: Any) -> None:
    process = program(MAIN_PROGRAM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.startswith("[0, 3] True\n")
    assert 'program.py", line 23, in failing' in out
    assert 'raise RuntimeError("in main")' in out
    assert err == ""


def test_program_from_standard_input() -> None:
    source = "import meshsim\nprint(meshsim.run(lambda ctx: ctx.rank, 'dp=2', backend='gloo').returns)\n"
    done = subprocess.run(
        [sys.executable, "-"], input=source, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "[0, 1]\n", done.stderr


def test_ranks_start_where_the_parent_is(
    values: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MESHSIM_TEST_VARIABLE", "seen")
    got = values(lambda ctx: (os.getcwd(), os.environ["MESHSIM_TEST_VARIABLE"]), 1)
    assert got == [(str(tmp_path), "seen")]
