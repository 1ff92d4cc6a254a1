"""Nothing is left behind by a run, whatever happened in it."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import meshsim
from meshsim.errors import UsageError


def good(ctx: Any) -> torch.Tensor:
    x = torch.ones(1000)
    dist.all_reduce(x, async_op=True).wait()
    dist.new_group([0])
    return x


def raising(ctx: Any) -> None:
    if ctx.rank:
        raise LookupError("on purpose")
    dist.all_reduce(torch.ones(1000))


def deadlocked(ctx: Any) -> None:
    dist.recv(torch.ones(1000), 1 - ctx.rank)


def disagreeing(ctx: Any) -> None:
    dist.all_reduce(torch.ones(1000, dtype=torch.float64 if ctx.rank else torch.float32))


def never_waiting(ctx: Any) -> None:
    dist.all_reduce(torch.ones(1000), async_op=True)


def own_default_group(ctx: Any) -> None:
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    dist.barrier()


SCENARIOS = (good, raising, deadlocked, disagreeing, never_waiting, own_default_group)


def test_threads_files_and_memory_after_200_runs() -> None:
    process = psutil.Process()

    def run(count: int) -> tuple[int, int, int, int]:
        for number in range(count):
            meshsim.run(SCENARIOS[number % len(SCENARIOS)], "dp=2")
        gc.collect()
        return threading.active_count(), process.num_fds(), len(gc.get_objects()), process.memory_info().rss

    # Garbage of a run waits for a later collection, so that memory levels off only after some runs.
    threads, files, objects, memory = run(150)
    after = run(200)
    assert after[:2] == (threads, files)
    assert after[2] < objects + 1000
    # Runs that kept their threads, or all that the threads refer to, would hold far more.
    assert after[3] < memory + 16 * 2**20


def process_state() -> dict[str, Any]:
    return {
        "threads": set(threading.enumerate()),
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "streams": (sys.stdout, sys.stderr),
        "hooks": (sys.excepthook, threading.excepthook),
        "argv and path": (list(sys.argv), list(sys.path)),
        "random": random.getstate(),
        "filters": list(warnings.filters),
        "signals": signal.getsignal(signal.SIGINT),
        "recursion": sys.getrecursionlimit(),
        "torch": (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed()),
        "torch random": torch.get_rng_state().tolist(),
        "printing": vars(torch._tensor_str.PRINT_OPTS).copy(),
        "logging": (logging.root.level, list(logging.root.handlers)),
        "c10d": (
            dist.is_initialized(),
            dict(c10d._world.pg_map),
            dict(c10d._world.pg_names),
            c10d._world.group_count,
            c10d.init_process_group,
            c10d._new_process_group_helper,
            dist.TCPStore,
        ),
        "patched": (threading._allocate_lock, threading.Thread.join, torch.futures.Future.wait),
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
    }


def untidy(ctx: Any) -> None:
    logging.basicConfig(level=logging.DEBUG)
    torch.set_printoptions(precision=2)
    sys.setrecursionlimit(4321)
    sys.excepthook = print
    warnings.simplefilter("ignore")
    os.environ["LEFT"] = "behind"
    random.seed(0)
    torch.manual_seed(0)
    raise LookupError("on purpose")


@pytest.mark.parametrize("scenario", [*SCENARIOS, untidy], ids=lambda scenario: scenario.__name__)
def test_the_process_is_as_before(scenario: Any) -> None:
    meshsim.run(good, "dp=2")
    before = process_state()
    meshsim.run(scenario, "dp=2")
    after = process_state()
    for what, value in before.items():
        assert after[what] == value, what


def test_a_run_inside_a_run_is_refused(passed: Any) -> None:
    def scenario(ctx: Any) -> str:
        with pytest.raises(UsageError) as refused:
            meshsim.run(good, "dp=2")
        return str(refused.value)

    for message in passed(scenario, "dp=2"):
        assert "already running" in message


def test_of_two_threads_only_one_can_run() -> None:
    inside, go_on = threading.Event(), threading.Event()
    results: list[Any] = []

    def scenario(ctx: Any) -> None:
        inside.set()
        assert go_on.wait(60)

    first = threading.Thread(target=lambda: results.append(meshsim.run(scenario, "dp=1")))
    first.start()
    assert inside.wait(60)
    try:
        with pytest.raises(UsageError, match="already running"):
            meshsim.run(good, "dp=2")
    finally:
        go_on.set()
        first.join()
    assert results[0].ok
    assert meshsim.run(good, "dp=2").ok


def test_an_interrupt_ends_the_run_and_restores_everything() -> None:
    before = process_state()
    inside = threading.Event()

    def scenario(ctx: Any) -> None:
        os.environ["LEFT"] = "behind"
        random.seed(1)
        inside.set()
        while True:
            pass

    def interrupt() -> None:
        inside.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        meshsim.run(scenario, "dp=2")
    interrupter.join()
    after = process_state()
    for what, value in before.items():
        assert after[what] == value, what
    assert meshsim.run(good, "dp=2").ok


OWN_GROUP = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed as dist, meshsim
import torch.distributed._functional_collectives as functional
from test_clean_after_runs import SCENARIOS, good

dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
world, other = dist.group.WORLD, dist.new_group([0])
for scenario in SCENARIOS:
    result = meshsim.run(scenario, "dp=2")
    assert result.ok == (scenario.__name__ in ("good", "own_default_group")), result.verdict
    assert dist.group.WORLD is world
    x = torch.ones(1)
    dist.all_reduce(x, group=other)
    assert functional.wait_tensor(functional.all_reduce(x, "sum", other)).item() == 1
    assert dist.get_world_size() == 1
dist.destroy_process_group()
print("untouched")
"""


def test_the_caller_s_own_default_group_is_untouched(tmp_path: Any) -> None:
    other = subprocess.run(
        [sys.executable, "-c", OWN_GROUP, os.path.dirname(__file__), str(tmp_path / "meet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.stdout.strip() == "untouched", other.stderr
