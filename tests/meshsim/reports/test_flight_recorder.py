"""Dumps in the Flight Recorder's format: torch's own analyser loads them and finds what is wrong."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace
from torch.distributed.flight_recorder.components.types import MatchState

import meshsim
from meshsim.errors import UsageError
from meshsim.reports.flight_recorder import write_flight_recorder


def analysed(folder):
    """The analyser's tables: groups, memberships, collectives and calls."""
    output = folder.parent / "database"
    fr_trace.main([str(folder), "-o", str(output)])
    _, database = pickle.loads(output.read_bytes())
    return database


def run_and_analyse(scenario, topology, folder, **options):
    result = meshsim.run(scenario, topology, **options)
    write_flight_recorder(folder, result)
    return result, analysed(folder)


def every_operation(ctx):
    """Rightly used, so that the analyser must find nothing."""
    n, r = ctx.world_size, ctx.rank
    tp = ctx.mesh.device_mesh.get_group("tp")
    x = torch.ones(n, 2)
    dist.all_reduce(x)
    dist.all_reduce(x, group=tp)
    dist.broadcast(x, 1)
    dist.reduce(x.clone(), 2)
    dist.all_gather([torch.empty(n, 2) for _ in range(n)], x)
    dist.all_gather_into_tensor(torch.empty(n * n, 2), x)
    dist.reduce_scatter(torch.empty(2), list(x.unbind()))
    dist.reduce_scatter_tensor(torch.empty(1, 2), x)
    dist.gather(x, [torch.empty(n, 2) for _ in range(n)] if r == 1 else None, 1)
    dist.scatter(torch.empty(2), list(x.unbind()) if r == 1 else None, 1)
    # Rank r sends d rows to rank d.
    dist.all_to_all_single(torch.empty(n * r, 2), torch.ones(6, 2), [r] * n, [0, 1, 2, 3])
    dist.all_to_all([torch.empty(3) for _ in range(n)], [torch.ones(3) for _ in range(n)])
    dist.all_gather_object([None] * n, {"rank": r})
    dist.barrier()
    for step in range(2):
        ring = [
            dist.P2POp(dist.isend, torch.ones(step + 1), (r + 1) % n),
            dist.P2POp(dist.irecv, torch.empty(step + 1), (r - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ring):
            work.wait()
    if r == 0:
        dist.send(torch.ones(3), 2, tag=7)
    if r == 2:
        dist.recv(torch.empty(3), tag=7)
    with dist._coalescing_manager(async_ops=True) as block:
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(2))
    block.wait()


@pytest.mark.parametrize("backend", ["fake", "gloo"])
def test_a_correct_run_has_no_finding(backend, tmp_path):
    result, database = run_and_analyse(every_operation, "dp=2,tp=2", tmp_path / "dumps", backend=backend)
    assert result.ok, result.verdict
    assert all(entry.pass_check and not entry.missing_ranks for entry in database.collectives)
    calls = [event for event in result.trace if event.group and event.op != "new_group"]
    assert len(database.ncclcalls) == len(calls)
    assert {(group.desc, group.size) for group in database.groups} >= {("world", 4), ("tp", 2)}


def another_shape(ctx):
    dist.barrier()
    dist.all_reduce(torch.ones(3 if ctx.rank == 2 else 4))


def another_dtype(ctx):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if ctx.rank == 2 else torch.float32))


def another_operation(ctx):
    if ctx.rank == 2:
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize("backend", ["fake", "gloo"])
@pytest.mark.parametrize(
    ("scenario", "state"),
    [
        (another_shape, MatchState.SIZE_OR_SYNTAX_MISMATCH),
        (another_dtype, MatchState.COLLECTIVE_DTYPE_MISMATCH),
        (another_operation, MatchState.COLLECTIVE_TYPE_MISMATCH),
    ],
)
def test_a_mismatch_is_found(scenario, state, backend, tmp_path):
    result, database = run_and_analyse(scenario, "dp=3", tmp_path / "dumps", backend=backend)
    assert not result.ok
    (bad,) = [entry for entry in database.collectives if not entry.pass_check]
    assert {entry.type_of_mismatch.state for entry in bad.mismatch_collectives.values()} == {state}
    # The analyser takes the rank whose file it finds first to be right.
    assert set(bad.mismatch_collectives) in ({2}, {0, 1})
    (frame,) = bad.collective_frames
    assert (frame["name"], frame["filename"]) == (scenario.__name__, __file__)


def absent(ctx):
    if ctx.rank != 1:
        dist.all_reduce(torch.ones(4))


def sends_to_nobody(ctx):
    if ctx.rank == 0:
        dist.send(torch.ones(4), 2)


@pytest.mark.parametrize(("scenario", "missing"), [(absent, {1}), (sends_to_nobody, {2})])
def test_a_rank_that_is_missing_is_named(scenario, missing, tmp_path):
    _, database = run_and_analyse(scenario, "dp=3", tmp_path / "dumps")
    assert [entry.missing_ranks for entry in database.collectives] == [missing]
    assert [entry.collective_state for entry in database.collectives] == ["scheduled"]


def test_dumps_of_an_earlier_run_are_replaced(tmp_path):
    for topology, ranks in (("dp=3", 3), ("dp=2", 2)):
        paths = write_flight_recorder(tmp_path, meshsim.run(another_dtype, topology))
        assert sorted(tmp_path.iterdir()) == paths == [tmp_path / f"rank_{r}" for r in range(ranks)]


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "notes_1").write_text("mine")
    with pytest.raises(UsageError, match="notes_1 lies there"):
        write_flight_recorder(tmp_path, meshsim.run(another_dtype, "dp=2"))
    assert [path.name for path in tmp_path.iterdir()] == ["notes_1"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="it is a file"):
        write_flight_recorder(tmp_path / "file", meshsim.run(another_dtype, "dp=2"))
