"""Small programs that go wrong in one way each, with a correct twin beside each.

``# <- here`` marks the lines that the verdict must name.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from meshsim.context import RankContext


def ones(ctx: RankContext, n: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(n, dtype=dtype)


def value(ctx: RankContext) -> torch.Tensor:
    return torch.tensor([float(ctx.rank + 1)])


# Group creation


def groups_by_everyone(ctx):
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    x = value(ctx)
    dist.all_reduce(x, group=pairs[ctx.rank % 2])
    return x.item()


def groups_by_own_pair(ctx):
    group = dist.new_group([0, 2] if ctx.rank % 2 == 0 else [1, 3])  # <- here
    x = value(ctx)
    dist.all_reduce(x, group=group)
    return x.item()


def group_by_members_only(ctx):
    x = value(ctx)
    if ctx.rank < 2:
        group = dist.new_group([0, 1])  # <- here
        dist.all_reduce(x, group=group)
    y = torch.ones(1)
    dist.all_reduce(y)
    return x.item(), y.item()


def group_by_members_with_local_synchronization(ctx):
    x = value(ctx)
    if ctx.rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(x, group=group)
    y = torch.ones(1)
    dist.all_reduce(y)
    return x.item(), y.item()


def groups_created_in_another_order(ctx):
    order = [[0, 1], [2, 3]] if ctx.rank < 3 else [[2, 3], [0, 1]]
    for members in order:
        dist.new_group(members)  # <- here


def groups_created_in_one_order(ctx):
    for members in [[0, 1], [2, 3]]:
        dist.new_group(members)


# Ranks of the call


def global_rank_not_in_group(ctx):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.tensor([float(ctx.rank)])
    dist.broadcast(x, src=0, group=pairs[ctx.rank // 2])  # <- here
    return x.item()


def group_rank_of_source(ctx):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.tensor([float(ctx.rank)])
    dist.broadcast(x, group_src=0, group=pairs[ctx.rank // 2])
    return x.item()


def global_rank_in_one_group_only(ctx):
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    x = torch.tensor([float(ctx.rank)])
    dist.broadcast(x, src=1, group=pairs[ctx.rank % 2])  # <- here
    dist.barrier()
    return x.item()


def group_rank_translated(ctx):
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = pairs[ctx.rank % 2]
    x = torch.tensor([float(ctx.rank)])
    dist.broadcast(x, src=dist.get_global_rank(group, 1), group=group)
    dist.barrier()
    return x.item()


def global_rank_as_group_rank(ctx):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.tensor([float(ctx.rank)])
    first = ctx.rank // 2 * 2
    src = dist.get_global_rank(pairs[ctx.rank // 2], first)  # <- here
    dist.broadcast(x, src=src, group=pairs[ctx.rank // 2])


def group_rank_as_group_rank(ctx):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.tensor([float(ctx.rank)])
    src = dist.get_global_rank(pairs[ctx.rank // 2], 0)
    dist.broadcast(x, src=src, group=pairs[ctx.rank // 2])
    return x.item()


def call_by_non_member(ctx):
    group = dist.new_group([0, 1])
    x = value(ctx)
    dist.all_reduce(x, group=group)  # <- here
    return x.item()


def call_by_members(ctx):
    group = dist.new_group([0, 1])
    x = value(ctx)
    if ctx.rank < 2:
        dist.all_reduce(x, group=group)
    return x.item()


# One call, and the ranks disagree about it


def another_operation(ctx):
    x = ones(ctx)
    if ctx.rank == 0:
        dist.all_reduce(x)  # <- here
    else:
        dist.broadcast(x, src=0)  # <- here


def same_operation_from_two_lines(ctx):
    x = ones(ctx)
    if ctx.rank == 0:
        dist.broadcast(x, src=0)
    else:
        dist.broadcast(x, src=0)
    return x.sum().item()


def another_operation_on_one_rank(ctx):
    x = ones(ctx)
    if ctx.rank == 2:
        dist.barrier()  # <- here
    dist.all_reduce(x)  # <- here
    if ctx.rank != 2:
        dist.barrier()


def operations_in_one_order(ctx):
    x = ones(ctx)
    dist.all_reduce(x)
    dist.barrier()
    return x.sum().item()


def another_dtype(ctx):
    x = ones(ctx, dtype=torch.int32 if ctx.rank == 0 else torch.float32)
    dist.all_reduce(x)  # <- here


def another_float_dtype(ctx):
    x = ones(ctx, dtype=torch.float64 if ctx.rank == 0 else torch.float32)
    dist.all_reduce(x)  # <- here


def one_dtype(ctx):
    x = ones(ctx, dtype=torch.float64)
    dist.all_reduce(x)
    return x.tolist()


def another_reduce_op(ctx):
    x = value(ctx)
    dist.all_reduce(x, op=dist.ReduceOp.MAX if ctx.rank == 0 else dist.ReduceOp.SUM)  # <- here


def one_reduce_op(ctx):
    x = value(ctx)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.item()


def another_element_count(ctx):
    x = ones(ctx, 4 if ctx.rank != 1 else 3)
    dist.all_reduce(x)  # <- here


def one_element_count(ctx):
    x = ones(ctx, 4)
    dist.all_reduce(x)
    return x.sum().item()


def another_shape(ctx):
    x = torch.ones((2, 3) if ctx.rank == 0 else (3, 2))
    dist.all_reduce(x)  # <- here


def one_shape(ctx):
    x = torch.ones((2, 3))
    dist.all_reduce(x)
    return x.sum().item()


def another_root(ctx):
    x = value(ctx)
    dist.broadcast(x, src=1 if ctx.rank == 3 else 0)  # <- here


def one_root(ctx):
    x = value(ctx)
    dist.broadcast(x, src=0)
    return x.item()


def splits_that_disagree(ctx):
    source = torch.arange(3.0)
    splits = [1, 2] if ctx.rank == 0 else [2, 1]
    expected = [1, 1] if ctx.rank == 0 else [2, 1]
    out = torch.empty(sum(expected))
    dist.all_to_all_single(out, source, expected, splits)  # <- here


def splits_that_agree(ctx):
    source = torch.arange(3.0)
    splits = [1, 2] if ctx.rank == 0 else [2, 1]
    expected = [1, 2] if ctx.rank == 0 else [2, 1]
    out = torch.empty(sum(expected))
    dist.all_to_all_single(out, source, expected, splits)
    return out.tolist()


# Order and number of calls


def swapped(ctx):
    a = value(ctx)
    b = 10 * value(ctx)
    if ctx.rank == 0:
        dist.all_reduce(a)  # <- here
        dist.all_reduce(b)
    else:
        dist.all_reduce(b)  # <- here
        dist.all_reduce(a)
    return a.item(), b.item()


def not_swapped(ctx):
    a = value(ctx)
    b = 10 * value(ctx)
    if ctx.rank == 0:
        dist.all_reduce(a)
        dist.all_reduce(b)
    else:
        dist.all_reduce(a)
        dist.all_reduce(b)
    return a.item(), b.item()


def swapped_by_line(ctx):
    x = value(ctx)

    def first():
        dist.all_reduce(x[:])  # <- here

    def second():
        dist.all_reduce(x.view(1))  # <- here

    for step in (first, second) if ctx.rank == 0 else (second, first):
        step()


def same_lines_in_order(ctx):
    x = value(ctx)

    def first():
        dist.all_reduce(x[:])

    def second():
        dist.all_reduce(x.view(1))

    for step in (first, second):
        step()
    return x.item()


def swapped_in_a_loop(ctx):
    a = value(ctx)
    b = 10 * value(ctx)
    for tensor in (a, b) if ctx.rank == 0 else (b, a):
        dist.all_reduce(tensor)  # <- here
    return a.item(), b.item()


def loop_in_one_order(ctx):
    a = value(ctx)
    b = 10 * value(ctx)
    for tensor in (a, b):
        dist.all_reduce(tensor)
    return a.item(), b.item()


def swapped_behind_a_helper(ctx):
    def mean(tensor):
        dist.all_reduce(tensor)  # <- here
        return tensor / ctx.world_size

    grads = {"w": value(ctx), "v": 10 * value(ctx)}
    for name in sorted(grads, reverse=ctx.rank == 2):
        mean(grads[name])


def helper_in_one_order(ctx):
    def mean(tensor):
        dist.all_reduce(tensor)
        return tensor / ctx.world_size

    grads = {"w": value(ctx), "v": 10 * value(ctx)}
    return [mean(grads[name]).item() for name in sorted(grads)]


def gradients_in_another_order(ctx):
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(3))
    sum(layer(torch.ones(2)).sum() for layer in model).backward()
    parameters = list(model.parameters())
    for parameter in parameters if ctx.rank < 3 else reversed(parameters):
        dist.all_reduce(parameter.grad)  # <- here


def gradients_in_one_order(ctx):
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(2, 2, bias=False) for _ in range(3))
    sum(layer(torch.ones(2)).sum() for layer in model).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def buffers_in_turns(ctx):
    """Two buffers used in turns, all ranks alike: correct, though each buffer meets itself only."""
    front, back = value(ctx), 10 * value(ctx)
    for _ in range(4):
        dist.all_reduce(front)
        front, back = back, front
    return front.item()


def roots_take_turns(ctx):
    """Role-relative names cross, but the roots tell the calls apart: correct."""
    mine, theirs = value(ctx), torch.zeros(1)
    if ctx.rank == 0:
        dist.broadcast(mine, src=0)
        dist.broadcast(theirs, src=1)
    else:
        dist.broadcast(theirs, src=0)
        dist.broadcast(mine, src=1)
    return mine.item(), theirs.item()


def skipped_step(ctx):
    for step in range(2):
        loss = torch.tensor(float("nan") if ctx.rank == 1 and step == 1 else 1.0)
        if loss.isnan():
            continue
        dist.all_reduce(loss)  # <- here


def step_skipped_by_all(ctx):
    done = 0
    for step in range(2):
        loss = torch.tensor(float("nan") if ctx.rank == 1 and step == 1 else 1.0)
        flag = loss.isnan().float()
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item():
            continue
        dist.all_reduce(loss)
        done += 1
    return done


def skipped_along_tp(ctx):
    tp = ctx.mesh.device_mesh.get_group("tp")
    if ctx.rank != 1:
        dist.all_reduce(ones(ctx), group=tp)  # <- here
    dist.barrier()


def reduced_along_tp(ctx):
    tp = ctx.mesh.device_mesh.get_group("tp")
    dist.all_reduce(ones(ctx), group=tp)
    dist.barrier()


def uneven_batches(ctx):
    for _ in range(3 if ctx.rank == 0 else 2):
        dist.all_reduce(ones(ctx))  # <- here


def even_batches(ctx):
    for _ in range(3):
        dist.all_reduce(ones(ctx))


def barrier_not_reached_by_return(ctx):
    dist.all_reduce(ones(ctx))
    dist.barrier()
    if ctx.rank == 3:
        return
    dist.barrier()  # <- here


def barrier_not_reached_by_exit(ctx):
    dist.all_reduce(ones(ctx))
    if ctx.rank == 3:
        sys.exit(5)  # <- here
    dist.barrier()


def barrier_not_reached_by_sleep(ctx):
    dist.all_reduce(ones(ctx))
    if ctx.rank == 3:
        time.sleep(600)
    dist.barrier()  # <- here


def barrier_reached(ctx):
    dist.all_reduce(ones(ctx))
    dist.barrier()


def call_by_rank_0_only(ctx):
    dist.all_reduce(ones(ctx))
    if ctx.rank == 0:
        dist.all_reduce(ones(ctx))  # <- here


def call_by_all(ctx):
    dist.all_reduce(ones(ctx))
    dist.all_reduce(ones(ctx))


def groups_in_opposite_order(ctx):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (a, b) if ctx.rank == 0 else (b, a):
        dist.all_reduce(ones(ctx), group=group)  # <- here


def groups_in_one_order(ctx):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (a, b):
        dist.all_reduce(ones(ctx), group=group)


def groups_in_opposite_order_async(ctx):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    works = [
        dist.all_reduce(ones(ctx), group=group, async_op=True)  # <- here
        for group in ((a, b) if ctx.rank == 0 else (b, a))
    ]
    for work in works:
        work.wait()


def groups_in_one_order_async(ctx):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    works = [dist.all_reduce(ones(ctx), group=group, async_op=True) for group in (a, b)]
    for work in works:
        work.wait()


def ring_of_groups(ctx):
    pairs = [dist.new_group(members) for members in ([0, 1], [1, 2], [0, 2])]
    # Rank 0 begins with [0,1], rank 1 with [1,2], rank 2 with [2,0]: nobody's partner has come.
    order = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[ctx.rank]
    for i in order:
        dist.all_reduce(ones(ctx), group=pairs[i])  # <- here


def ring_of_groups_in_order(ctx):
    pairs = [dist.new_group(members) for members in ([0, 1], [1, 2], [0, 2])]
    for i, members in enumerate(([0, 1], [1, 2], [0, 2])):
        if ctx.rank in members:
            dist.all_reduce(ones(ctx), group=pairs[i])


def host_waits_before_sending(ctx):
    x = ones(ctx)
    if ctx.rank == 0:
        dist.barrier()  # <- here
        dist.send(x, 1)
    else:
        dist.recv(x, 0)  # <- here
        dist.barrier()


def host_sends_before_waiting(ctx):
    x = ones(ctx)
    if ctx.rank == 0:
        dist.send(x, 1)
        dist.barrier()
    else:
        dist.recv(x, 0)
        dist.barrier()


def work_waited_for_too_early(ctx):
    a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
    first, second = (a, b) if ctx.rank == 0 else (b, a)
    work = dist.all_reduce(ones(ctx), group=first, async_op=True)  # <- here
    work.wait()
    dist.all_reduce(ones(ctx), group=second)


# Point to point


def both_send_first(ctx):
    n = ctx.params.get("n", 4)
    x, y = torch.ones(n), torch.empty(n)
    dist.send(x, 1 - ctx.rank)  # <- here
    dist.recv(y, 1 - ctx.rank)


def one_sends_first(ctx):
    n = ctx.params.get("n", 4)
    x, y = torch.ones(n), torch.empty(n)
    if ctx.rank == 0:
        dist.send(x, 1)
        dist.recv(y, 1)
    else:
        dist.recv(y, 0)
        dist.send(x, 0)
    return y.sum().item()


def all_receive_first(ctx):
    y = torch.empty(4)
    dist.recv(y, (ctx.rank - 1) % 3)  # <- here
    dist.send(y, (ctx.rank + 1) % 3)


def ring_in_one_batch(ctx):
    x, y = value(ctx), torch.empty(1)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, x, (ctx.rank + 1) % 3),
            dist.P2POp(dist.irecv, y, (ctx.rank - 1) % 3),
        ]
    )
    for work in works:
        work.wait()
    return y.item()


def send_that_nobody_receives(ctx):
    if ctx.rank == 0:
        dist.send(ones(ctx), 1)  # <- here


def receive_to_which_nobody_sends(ctx):
    if ctx.rank == 1:
        dist.recv(ones(ctx), 0)  # <- here


def isend_that_nobody_receives(ctx):
    if ctx.rank == 0:
        dist.isend(ones(ctx), 1)  # <- here


def sent_and_received(ctx):
    x = value(ctx)
    if ctx.rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    return x.item()


def receive_of_another_size(ctx):
    if ctx.rank == 0:
        dist.send(ones(ctx, 4), 1)  # <- here
    else:
        dist.recv(ones(ctx, 6), 0)  # <- here


def receive_of_another_dtype(ctx):
    if ctx.rank == 0:
        dist.send(ones(ctx, 4), 1)  # <- here
    else:
        dist.recv(ones(ctx, 4, torch.int32), 0)  # <- here


def receive_with_another_tag(ctx):
    if ctx.rank == 0:
        dist.send(ones(ctx), 1, tag=3)  # <- here
    else:
        dist.recv(ones(ctx), 0, tag=4)  # <- here


def tags_out_of_order(ctx):
    x, y = torch.tensor([1.0]), torch.tensor([2.0])
    works = []
    for tag in (1, 2) if ctx.rank == 0 else (2, 1):
        tensor = x if tag == 1 else y
        works.append(
            dist.isend(tensor, 1, tag=tag)  # <- here
            if ctx.rank == 0
            else dist.irecv(tensor, 0, tag=tag)  # <- here
        )
    for work in works:
        work.wait()
    return x.item(), y.item()


def tags_in_order(ctx):
    x, y = torch.tensor([1.0]), torch.tensor([2.0])
    works = []
    for tag in (1, 2):
        tensor = x if tag == 1 else y
        works.append(dist.isend(tensor, 1, tag=tag) if ctx.rank == 0 else dist.irecv(tensor, 0, tag=tag))
    for work in works:
        work.wait()
    return x.item(), y.item()


# Buffers and works


def read_before_wait(ctx):
    x = value(ctx)
    work = dist.all_reduce(x, async_op=True)  # <- here
    early = x + 1
    work.wait()
    return early.item()


def written_before_wait(ctx):
    x = value(ctx)
    work = dist.all_reduce(x, async_op=True)  # <- here
    x.div_(2)
    work.wait()
    return x.item()


def divided_after_wait(ctx):
    x = value(ctx)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    x.div_(2)
    return x.item()


def never_waited(ctx):
    x = value(ctx)
    dist.all_reduce(x, async_op=True)  # <- here
    dist.barrier()


def always_waited(ctx):
    x = value(ctx)
    dist.all_reduce(x, async_op=True).wait()
    dist.barrier()
    return x.item()


def result_used_off_the_destination(ctx):
    x = torch.tensor([[1, 2], [3, 4]] if ctx.rank == 0 else [[4, 5], [6, 7]])
    dist.reduce(x, dst=0)  # <- here
    return x.sum().item()


def result_used_on_the_destination(ctx):
    x = torch.tensor([[1, 2], [3, 4]] if ctx.rank == 0 else [[4, 5], [6, 7]])
    dist.reduce(x, dst=0)
    return x.tolist() if ctx.rank == 0 else None


def non_contiguous(ctx):
    x = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(x)  # <- here
    return x.tolist()


def made_contiguous(ctx):
    x = torch.arange(6.0).reshape(2, 3).t().contiguous()
    dist.all_reduce(x)
    return x.tolist()


def overlapping(ctx):
    x = torch.ones(6)
    works = [
        dist.all_reduce(x[:4], async_op=True),  # <- here
        dist.all_reduce(x[2:], async_op=True),  # <- here
    ]
    for work in works:
        work.wait()


def not_overlapping(ctx):
    x = torch.ones(8)
    works = [dist.all_reduce(x[:4], async_op=True), dist.all_reduce(x[4:], async_op=True)]
    for work in works:
        work.wait()
    return x.sum().item()


# Ends of ranks


def raises(ctx):
    if ctx.rank == 2:
        raise ValueError("boom")  # <- here
    dist.all_reduce(ones(ctx))


def raises_and_catches(ctx):
    try:
        raise ValueError("boom")
    except ValueError:
        dist.all_reduce(ones(ctx))


def all_raise(ctx):
    dist.all_reduce(ones(ctx))
    raise ValueError("every rank")  # <- here


def exits(ctx):
    if ctx.rank == 1:
        sys.exit(0)  # <- here
    dist.barrier()


def is_killed(ctx):
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def spins(ctx):
    dist.barrier()
    if ctx.rank == 1:
        while True:
            time.sleep(0.01)


def ends(ctx):
    dist.barrier()


# What the backend has


def average_of_integers(ctx):
    x = ones(ctx, dtype=torch.int64)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)  # <- here


def average_of_floats(ctx):
    x = ones(ctx)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x.tolist()


def bitwise_or(ctx):
    x = ones(ctx, dtype=torch.int64)
    dist.all_reduce(x, op=dist.ReduceOp.BOR)  # <- here
    return x.tolist()


def maximum(ctx):
    x = ones(ctx, dtype=torch.int64)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.tolist()


def receive_from_any(ctx):
    x = value(ctx)
    if ctx.rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x)  # <- here
    return x.item()


# Data along an axis


def weights_that_drift(ctx):
    torch.manual_seed(0)
    w = torch.randn(4)
    if ctx.rank == 3:
        w[2] += 1e-6
    ctx.check.same(w, "dp", name="w")  # <- here


def weights_that_stay_the_same(ctx):
    torch.manual_seed(0)
    w = torch.randn(4)
    ctx.check.same(w, "dp", name="w")
    ctx.check.same(w + 1e-9 * ctx.rank, "dp", atol=1e-6)
    ctx.check.same({"step": 3}, "world")
    ctx.check.same(ctx.mesh.plan.coordinate(ctx.rank)["tp"], "dp")


def batches_that_repeat(ctx):
    torch.manual_seed(0)
    ctx.check.differs(torch.randn(4), "dp", name="the batch")  # <- here


def batches_of_their_own(ctx):
    torch.manual_seed(ctx.rank)
    ctx.check.differs(torch.randn(4), "dp", name="the batch")
    ctx.check.differs(torch.randn(4), "tp")


# Meshes


def meshes_that_differ(ctx):
    from meshlib import build_mesh_context

    with build_mesh_context("tp=2" if ctx.rank == 0 else "cp=2", device_type="cpu"):  # <- here
        pass


def meshes_that_agree(ctx):
    from meshlib import build_mesh_context

    with build_mesh_context("tp=2", device_type="cpu") as mesh:
        return mesh.tp_rank
