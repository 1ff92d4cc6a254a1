"""Each rank alone: what a process of its own would keep to itself."""

from __future__ import annotations

import contextvars
import ctypes
import io
import logging
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from random import random as drawn_by_name
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshsim

RANKS = range(3)


def draws() -> list[Any]:
    """Some of everything that is drawn from process-wide generators."""
    return [
        torch.rand(1).item(),
        torch.randn(1).item(),
        torch.randperm(5).tolist(),
        random.random(),
        random.gauss(0, 1),
        drawn_by_name(),
        float(np.random.rand()),
        float(np.random.randn()),
        int(np.random.randint(1000)),
    ]


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@pytest.fixture
def generators() -> Any:
    """The test's own states, put back."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize("reseed", [True, False], ids=["seeded by the rank", "seeded by the run"])
def test_each_rank_draws_what_a_lone_process_draws(passed: Any, reseed: bool) -> None:
    def scenario(ctx: Any) -> list[Any]:
        if reseed:
            seed_everything(100 + ctx.rank)
        found = []
        for _ in range(4):
            found += draws()
            dist.barrier()
        return found

    values = passed(scenario, "dp=3", seed=7)
    for rank in RANKS:
        seed_everything(100 + rank if reseed else 7)
        assert values[rank] == [value for _ in range(4) for value in draws()]


def test_the_caller_s_random_states_are_untouched(passed: Any) -> None:
    def scenario(ctx: Any) -> None:
        seed_everything(ctx.rank)
        draws()

    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    passed(scenario, "dp=2")
    after = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert str(before[2]) == str(after[2])


def getenv_of_c(name: bytes) -> bytes | None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return getenv(name)


def test_environment_variables(passed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "kept")
    before = dict(os.environ)

    def scenario(ctx: Any) -> list[Any]:
        os.environ["OF_A_RANK"] = f"value {ctx.rank}"
        if ctx.rank == 0:
            del os.environ["OF_THE_CALLER"]
        dist.barrier()
        child = subprocess.run(
            ["sh", "-c", "echo $OF_A_RANK $RANK $WORLD_SIZE"], capture_output=True, text=True, check=True
        )
        return [
            os.getenv("OF_A_RANK"),
            os.environb[b"RANK"],
            getenv_of_c(b"OF_A_RANK"),
            child.stdout.split(),
            os.environ.get("OF_THE_CALLER"),
            getenv_of_c(b"OF_THE_CALLER"),
        ]

    assert passed(scenario, "dp=2") == [
        ["value 0", b"0", b"value 0", ["value", "0", "0", "2"], None, None],
        ["value 1", b"1", b"value 1", ["value", "1", "1", "2"], "kept", b"kept"],
    ]
    assert dict(os.environ) == before
    assert getenv_of_c(b"OF_A_RANK") is None
    assert getenv_of_c(b"OF_THE_CALLER") == b"kept"


def test_what_torchrun_would_set(passed: Any) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert passed(lambda ctx: [os.environ[name] for name in names], "dp=2") == [
        ["0", "0", "2", "2"],
        ["1", "1", "2", "2"],
    ]


def test_working_directories(passed: Any, tmp_path: Path) -> None:
    before = os.getcwd()

    def scenario(ctx: Any) -> bool:
        own = tmp_path / str(ctx.rank)
        own.mkdir()
        os.chdir(own)
        dist.barrier()
        child = subprocess.run(["pwd"], capture_output=True, text=True, check=True).stdout.strip()
        return Path.cwd() == own and Path(child) == own

    assert passed(scenario, "dp=2") == [True, True]
    assert os.getcwd() == before


# Changes that rank 0 makes, what a rank then sees of them, and what a new process would see.
CHANGES: dict[str, tuple[Callable[[], object], Callable[[], Any], Any]] = {
    "default dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.ones(1).dtype,
        torch.float32,
    ),
    "default device": (
        lambda: torch.set_default_device("meta"),
        lambda: torch.get_default_device().type,
        "cpu",
    ),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled, True),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
        "highest",
    ),
    "warn always": (lambda: torch.set_warn_always(True), torch.is_warn_always_enabled, False),
    "anomaly mode": (
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.is_anomaly_enabled,
        False,
    ),
    "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads, 1),
    "flush denormal": (
        lambda: torch.set_flush_denormal(True),
        lambda: (torch.tensor([1e-40]) * 1).item() == 0,
        False,
    ),
    "argv": (lambda: sys.argv.append("--of-a-rank"), lambda: sys.argv[-1] == "--of-a-rank", False),
    "path": (lambda: sys.path.insert(0, "/of/a/rank"), lambda: sys.path[0] == "/of/a/rank", False),
    "warning filters": (
        lambda: warnings.simplefilter("error", BytesWarning),
        lambda: warnings.filters[0][:3:2] == ("error", BytesWarning),
        False,
    ),
    "excepthook": (
        lambda: setattr(sys, "excepthook", print),
        lambda: sys.excepthook is print,
        False,
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_setting_of_one_rank_is_not_another_s(passed: Any, what: str) -> None:
    change, look, fresh = CHANGES[what]
    before = look()

    def scenario(ctx: Any) -> list[Any]:
        if ctx.rank == 0:
            change()
        changed = look()
        dist.barrier()
        dist.barrier()
        return [changed, look()]

    mine, theirs = passed(scenario, "dp=2")
    assert mine[0] == mine[1] != fresh
    assert theirs == [fresh, fresh]
    assert look() == before


@pytest.mark.long
def test_deterministic_algorithms_of_one_rank(passed: Any) -> None:
    """Long, since torch imports its compiler for it."""

    def scenario(ctx: Any) -> bool:
        if ctx.rank == 0:
            torch.use_deterministic_algorithms(True)
        dist.barrier()
        return torch.are_deterministic_algorithms_enabled()

    assert passed(scenario, "dp=2") == [True, False]
    assert not torch.are_deterministic_algorithms_enabled()


def test_settings_are_put_back_when_a_rank_is_stopped_in_its_midst() -> None:
    before = torch.get_default_dtype(), os.getcwd(), list(sys.path)

    def scenario(ctx: Any) -> None:
        torch.set_default_dtype(torch.float64)
        os.chdir("/")
        sys.path.clear()
        while True:
            pass

    assert meshsim.run(scenario, "dp=1", timeout=0.3).verdict.kind == "stuck"
    assert (torch.get_default_dtype(), os.getcwd(), list(sys.path)) == before


def test_output_of_each_rank_is_its_own() -> None:
    logger = logging.getLogger("of.the.test")

    def scenario(ctx: Any) -> None:
        print("out", ctx.rank)
        dist.barrier()
        print("error", ctx.rank, file=sys.stderr)
        logger.warning("logged %d", ctx.rank)
        dist.barrier()
        sys.stdout.buffer.write(f"bytes {ctx.rank}\n".encode())

    outside = sys.stdout, sys.stderr
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        result = meshsim.run(scenario, "dp=2")
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    assert [rank.stdout for rank in result.ranks] == ["out 0\nbytes 0\n", "out 1\nbytes 1\n"]
    assert [rank.stderr for rank in result.ranks] == ["error 0\nlogged 0\n", "error 1\nlogged 1\n"]
    assert (sys.stdout, sys.stderr) == outside
    assert handler.stream is sys.stderr


def test_redirected_output_across_communication(passed: Any) -> None:
    def scenario(ctx: Any) -> str:
        with redirect_stdout(io.StringIO()) as own:
            print("first", ctx.rank)
            dist.barrier()
            print("second", ctx.rank)
            dist.barrier()
        return own.getvalue()

    assert passed(scenario, "dp=2") == ["first 0\nsecond 0\n", "first 1\nsecond 1\n"]


def test_recorded_warnings_across_communication(passed: Any) -> None:
    def scenario(ctx: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            dist.barrier()
            warnings.warn(f"of rank {ctx.rank}", stacklevel=1)
            dist.barrier()
            return [str(each.message) for each in seen]

    before = list(warnings.filters), warnings.showwarning
    assert passed(scenario, "dp=2") == [["of rank 0"], ["of rank 1"]]
    assert (list(warnings.filters), warnings.showwarning) == before


def test_autocast_and_modes_across_communication(passed: Any) -> None:
    def product() -> torch.dtype:
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    def scenario(ctx: Any) -> list[torch.dtype]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ctx.rank == 0):
            dist.barrier()
            return [product()]

    assert passed(scenario, "dp=2") == [[torch.bfloat16], [torch.float32]]


variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)


def test_context_variables(passed: Any) -> None:
    def scenario(ctx: Any) -> int:
        variable.set(ctx.rank)
        dist.barrier()
        return variable.get()

    assert passed(scenario, "dp=2") == [0, 1]
    assert variable.get() == -1


MODULE = """
import threading
STATE = {"groups": []}
ALIAS = STATE["groups"]
RANK = None
LOCK = threading.Lock()

class Parallel:
    instance = None

def start(rank):
    global RANK
    RANK = rank
    STATE["groups"].append(rank)
    STATE[rank] = True
    Parallel.instance = rank
    Parallel.added = rank

def read():
    return RANK, STATE, ALIAS is STATE["groups"], Parallel.instance, Parallel.added
"""


def test_globals_of_isolated_modules(passed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keeps_state.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import keeps_state

    def scenario(ctx: Any) -> tuple[Any, ...]:
        keeps_state.start(ctx.rank)
        dist.barrier()
        return keeps_state.read()

    assert passed(scenario, "dp=2", isolate=["keeps_state"]) == [
        (rank, {"groups": [rank], rank: True}, True, rank, rank) for rank in range(2)
    ]
    assert keeps_state.RANK is None
    assert keeps_state.STATE == {"groups": []}
    assert keeps_state.Parallel.instance is None
    assert not hasattr(keeps_state.Parallel, "added")


def test_loss_parallel_of_one_rank_is_not_another_s(passed: Any) -> None:
    def scenario(ctx: Any) -> tuple[float, float]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        from torch.distributed.tensor.parallel import loss_parallel
        from torch.nn.functional import cross_entropy

        torch.manual_seed(0)
        logits, target = torch.randn(4, 8), torch.tensor([0, 3, 5, 7])
        mesh = init_device_mesh("cpu", (2,))
        sharded = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
        with loss_parallel():
            loss = cross_entropy(sharded, target)
            loss.backward()
        return loss.full_tensor().item(), cross_entropy(logits, target).item()

    for parallel, alone in passed(scenario, "tp=2"):
        assert parallel == pytest.approx(alone, rel=1e-6)
