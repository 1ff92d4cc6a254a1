"""What each kind of finding means, what it does on each backend, and what to do about it: one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from meshsim.verdict import Severity, VerdictKind


class Effect(str, Enum):
    """What a backend makes of a program with this fault."""

    FAILS = "fails"
    """It raises, aborts or hangs."""
    CORRUPTS = "corrupts"
    """It goes on with wrong data, or may."""
    PASSES = "passes"
    """The result is right there."""


_F, _C, _P = Effect.FAILS, Effect.CORRUPTS, Effect.PASSES


@dataclass(frozen=True)
class KindInfo:
    """One row of the table."""

    kind: VerdictKind
    meaning: str
    gloo: Effect
    nccl: Effect
    hccl: Effect
    advice: str

    def effect(self, backend: str) -> Effect:
        """The effect on a backend. The fake world gives gloo's results, so it answers as gloo."""
        return {"nccl": self.nccl, "hccl": self.hccl}.get(backend, self.gloo)

    def severity(self, backend: str) -> Severity:
        """Error where this backend fails or corrupts, hazard where only another does, else warning."""
        if self.effect(backend) is not Effect.PASSES:
            return Severity.ERROR
        if any(effect is not Effect.PASSES for effect in (self.gloo, self.nccl, self.hccl)):
            return Severity.HAZARD
        return Severity.WARNING


_K = VerdictKind

_ROWS = (
    KindInfo(_K.PASSED, "every rank returned and nothing was found", _P, _P, _P, ""),
    KindInfo(
        _K.RAISED,
        "a rank raised an exception",
        _F, _F, _F,
        "Read that rank's traceback first; what other ranks report afterwards is a consequence.",
    ),
    KindInfo(
        _K.EXITED,
        "a rank ended its process without handing in a result",
        _F, _F, _F,
        "Find the sys.exit or os._exit on that rank; a scenario ends by returning.",
    ),
    KindInfo(
        _K.KILLED,
        "a signal ended a rank",
        _F, _F, _F,
        "SIGKILL often means out of memory, SIGSEGV and SIGABRT a fault in native code: "
        "see the rank's last output and stack.",
    ),
    KindInfo(
        _K.STUCK,
        "a rank spins, sleeps or blocks outside of communication",
        _F, _F, _F,
        "See that rank's stack; waiting must go through torch.distributed, or be shorter than the deadline.",
    ),
    KindInfo(
        _K.TIMEOUT,
        "the deadline passed and the traces prove nothing more",
        _F, _F, _F,
        "See each rank's stack; give a longer timeout if the ranks were still making progress.",
    ),
    KindInfo(
        _K.DEADLOCK,
        "ranks wait for a call that will never come: a rank missed it, or returned early",
        _F, _F, _F,
        "Make every rank of the group reach the call: let the ranks agree on skipping or ending "
        "(an all_reduce of a flag) instead of deciding each on its own.",
    ),
    KindInfo(
        _K.OPERATION_MISMATCH,
        "ranks of a group made different calls at the same place in its order",
        _F, _F, _F,
        "Compare the lines; look for a branch on the rank or on its own data, or a call skipped before.",
    ),
    KindInfo(
        _K.REDUCE_OP_MISMATCH,
        "ranks reduce with different operators",
        _C, _C, _C,
        "Give the same reduce op on every rank of the group.",
    ),
    KindInfo(
        _K.DTYPE_MISMATCH,
        "ranks gave tensors of different dtypes",
        _C, _C, _C,
        "Cast to one dtype before the call; backends move bytes and don't look.",
    ),
    KindInfo(
        _K.COUNT_MISMATCH,
        "ranks gave different numbers of elements",
        _F, _F, _F,
        "Pad to the largest size, or exchange the sizes first and use an operation with splits.",
    ),
    KindInfo(
        _K.SHAPE_MISMATCH,
        "ranks gave the same number of elements in different shapes",
        _C, _C, _C,
        "Backends only count elements: reshape or transpose on every rank alike before the call.",
    ),
    KindInfo(
        _K.ROOT_MISMATCH,
        "ranks named different source or destination ranks",
        _F, _F, _F,
        "Compute the root from the group, the same on every rank; src and dst are global ranks, "
        "group_src and group_dst count inside the group.",
    ),
    KindInfo(
        _K.SPLITS_MISMATCH,
        "what a rank sends to another in an all-to-all isn't what that one expects",
        _F, _F, _F,
        "Exchange the counts with an all_to_all_single first and use what arrives as output splits.",
    ),
    KindInfo(
        _K.EXTRA_CALL,
        "a few ranks made a call that most of their group never makes",
        _F, _F, _F,
        "Move the call out of the branch that only these ranks take, or let every rank of the group make it.",
    ),
    KindInfo(
        _K.SWAPPED_OPERATIONS,
        "ranks made the same calls on a group in another order, and the calls look alike",
        _C, _C, _C,
        "Make the calls in one fixed order on every rank; don't iterate over sets or over dicts filled in "
        "rank-dependent order.",
    ),
    KindInfo(
        _K.GROUP_ORDER_CYCLE,
        "ranks use two groups, or a ring of groups, in opposite order",
        _F, _F, _F,
        "Use the groups in one fixed order on every rank. Asynchronous calls only hide this on gloo: "
        "NCCL needs one order of communicators.",
    ),
    KindInfo(
        _K.HOST_SYNC_CYCLE,
        "ranks wait for each other in a circle that goes through a barrier, a wait() or a store",
        _F, _F, _F,
        "Issue the communication that the other rank needs before the barrier or the wait().",
    ),
    KindInfo(
        _K.GROUP_CREATION_MISMATCH,
        "ranks created different groups at the same place in the order of creation",
        _F, _F, _F,
        "Call new_group on every rank for every group, in the same order, also for groups it isn't in.",
    ),
    KindInfo(
        _K.GROUP_CREATION_BY_MEMBERS_ONLY,
        "only some ranks of the world took part in new_group",
        _P, _F, _F,
        "Call new_group on every rank of the world, or pass use_local_synchronization=True.",
    ),
    KindInfo(
        _K.NON_MEMBER_CALL,
        "a rank called an operation on a group that it isn't in",
        _C, _C, _C,
        "The call returns at once and leaves the tensor as it was: call only where the rank is a member.",
    ),
    KindInfo(
        _K.WRONG_RANK_KIND,
        "a global rank was given where a rank in the group is meant, or the reverse",
        _F, _F, _F,
        "src, dst and peer are global ranks: use group_src or group_dst for a rank in the group, or "
        "dist.get_global_rank(group, rank).",
    ),
    KindInfo(
        _K.PLAN_MISMATCH,
        "ranks built different meshes",
        _F, _F, _F,
        "Give every rank the same sizes and the same order of axes.",
    ),
    KindInfo(
        _K.SEND_RECV_CYCLE,
        "ranks wait in sends or receives for each other in a circle",
        _F, _F, _F,
        "Let one side receive first, or put both into one batch_isend_irecv; sends aren't buffered.",
    ),
    KindInfo(
        _K.UNMATCHED_SEND,
        "a send that nobody receives",
        _F, _F, _F,
        "Add the receive on the peer, with the same group and tag, or drop the send.",
    ),
    KindInfo(
        _K.UNMATCHED_RECV,
        "a receive to which nobody sends",
        _F, _F, _F,
        "Add the send on the peer, with the same group and tag, or drop the receive.",
    ),
    KindInfo(
        _K.P2P_COUNT_MISMATCH,
        "sender and receiver have different numbers of elements",
        _F, _F, _F,
        "Send the shape first, or agree on it, and receive into a tensor of that size.",
    ),
    KindInfo(
        _K.P2P_DTYPE_MISMATCH,
        "sender and receiver have different dtypes",
        _C, _C, _C,
        "Receive into a tensor of the sender's dtype; backends move bytes and don't look.",
    ),
    KindInfo(
        _K.P2P_TAG_MISMATCH,
        "sender and receiver wait for each other with different tags",
        _F, _P, _P,
        "Use the same tag on both sides. NCCL and HCCL ignore tags, so there the order alone decides.",
    ),
    KindInfo(
        _K.READ_BEFORE_WAIT,
        "a result was read before wait()",
        _C, _C, _C,
        "Call wait() on the work before the first use of its tensors.",
    ),
    KindInfo(
        _K.WRITE_BEFORE_WAIT,
        "a buffer was written before wait()",
        _C, _C, _C,
        "Call wait() on the work before changing its tensors, or hand it a copy.",
    ),
    KindInfo(
        _K.NEVER_WAITED,
        "an asynchronous work was never waited for",
        _P, _C, _C,
        "Keep the work and call wait() on it: nothing else orders the result before its use.",
    ),
    KindInfo(
        _K.UNDEFINED_RESULT,
        "a buffer was used whose value the operation leaves undefined",
        _C, _C, _C,
        "Only the destination of reduce holds the result: use all_reduce, or a copy of the input elsewhere.",
    ),
    KindInfo(
        _K.NON_CONTIGUOUS_BUFFER,
        "a tensor isn't contiguous, and gloo doesn't look",
        _C, _F, _F,
        "Hand in tensor.contiguous() and copy the result back.",
    ),
    KindInfo(
        _K.OVERLAPPING_BUFFERS,
        "two buffers of one call, or of calls under way at once, share memory",
        _C, _C, _C,
        "Give each buffer memory of its own, or wait for the first call before the second.",
    ),
    KindInfo(
        _K.UNSUPPORTED,
        "the backend doesn't have this operation, dtype or reduce op",
        _F, _F, _F,
        "Use what the backend has (see the table of capabilities), or cast around the call.",
    ),
    KindInfo(
        _K.SHOULD_BE_SAME,
        "data that must be equal along an axis differ",
        _C, _C, _C,
        "Look for a missing all_reduce or broadcast, another seed, or other input on the odd ranks.",
    ),
    KindInfo(
        _K.SHOULD_DIFFER,
        "data that must differ along an axis are equal",
        _C, _C, _C,
        "Look for a rank-independent seed or index: each rank must draw or read its own part.",
    ),
    KindInfo(
        _K.FAULT_NOT_FIRED,
        "a fault that the run was to have never came to its call",
        _P, _P, _P,
        "Name an operation and a count that the rank comes to: the warning says which calls there were.",
    ),
    KindInfo(
        _K.NOT_RUN,
        "the scenario doesn't support the topology, so nothing was run",
        _P, _P, _P,
        "",
    ),
)  # fmt: skip

KINDS: dict[VerdictKind, KindInfo] = {row.kind: row for row in _ROWS}


def severity_of(kind: VerdictKind, backend: str = "gloo") -> Severity:
    """How severe a finding of this kind is on ``fake``, ``gloo``, ``nccl`` or ``hccl``."""
    return KINDS[kind].severity(backend)


def advice_for(kind: VerdictKind) -> str:
    """What to do about it, in a sentence or two."""
    return KINDS[kind].advice


def kinds_table() -> str:
    """The table of verdict kinds for the docs, as Markdown."""
    lines = [
        "| kind | meaning | gloo | NCCL | HCCL | severity on gloo | what to do |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _ROWS:
        severity = "" if row.kind is VerdictKind.PASSED else row.severity("gloo").value
        effects = " | ".join(effect.value for effect in (row.gloo, row.nccl, row.hccl))
        lines.append(f"| `{row.kind.value}` | {row.meaning} | {effects} | {severity} | {row.advice} |")
    return "\n".join(lines) + "\n"
