"""The table of capabilities, cell by cell."""

from __future__ import annotations

import pytest
from checker_traces import call

from meshsim.checker.capabilities import (
    BACKENDS,
    DTYPES,
    REDUCE_OPS,
    CallFacts,
    capability_table,
    unsupported,
)

# Columns as measured and as read in the sources; one letter a dtype.
COLUMNS = {
    "floats": "float32 float64 float16 bfloat16",
    "integers": "int8 uint8 int32 int64",
    "bool": "bool",
    "complex": "complex64 complex128",
    "others": "int16 uint16 uint32 uint64 float8_e4m3fn float8_e5m2",
}
GLOO = """
SUM          yes yes yes yes no
AVG          yes no  no  yes no
PRODUCT      yes yes yes no  no
MIN          yes yes yes no  no
MAX          yes yes yes no  no
BAND         no  yes yes no  no
BOR          no  yes yes no  no
BXOR         no  yes yes no  no
PREMUL_SUM   no  no  no  no  no
broadcast    yes yes yes yes no
all_gather   yes yes yes yes no
all_gather_into_tensor           yes yes yes yes no
all_gather_into_tensor_coalesced yes yes yes yes no
all_to_all   yes yes yes yes no
all_to_all_single                yes yes yes yes no
scatter      yes yes yes yes no
gather       yes yes yes no  no
send         yes yes yes yes yes
recv         yes yes yes yes yes
"""
REDUCTIONS = (
    "all_reduce",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_reduce_coalesced",
    "reduce_scatter_tensor_coalesced",
)


def gloo_cells():
    for row in GLOO.strip().splitlines():
        name, *answers = row.split()
        for column, answer in zip(COLUMNS, answers, strict=True):
            for dtype in COLUMNS[column].split():
                if name in REDUCE_OPS:
                    for op in REDUCTIONS:
                        yield op, name, dtype, answer == "yes"
                else:
                    yield name, "", dtype, answer == "yes"


@pytest.mark.parametrize(("op", "reduce_op", "dtype", "works"), list(gloo_cells()))
def test_gloo(op, reduce_op, dtype, works):
    assert (unsupported(CallFacts(op, dtype, reduce_op), "gloo") is None) == works


NCCL_FLOATS = {"float16", "bfloat16", "float32", "float64"}
FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}
SIGNED = {"int8", "uint8", "int32", "int64"}
COMPLEX = {"complex64", "complex128"}
NCCL_MOVES = NCCL_FLOATS | FLOAT8 | SIGNED | COMPLEX | {"bool"}
HCCL_REDUCES = {"float16", "bfloat16", "float32", "int8", "int16", "int32", "int64"}
HCCL_MOVES = NCCL_FLOATS | FLOAT8 | SIGNED | {"int16", "bool"}
EXPECTED = {
    ("nccl", "all_reduce", "SUM"): NCCL_MOVES,
    ("nccl", "all_reduce", "AVG"): NCCL_MOVES - {"bool"},
    ("nccl", "reduce_scatter", "MIN"): NCCL_MOVES - COMPLEX,
    ("nccl", "all_reduce", "MAX"): NCCL_MOVES - COMPLEX,
    ("nccl", "reduce", "PRODUCT"): NCCL_MOVES - COMPLEX,
    ("nccl", "all_reduce", "BAND"): set(),
    ("nccl", "all_reduce", "BOR"): set(),
    ("nccl", "all_reduce", "BXOR"): set(),
    ("nccl", "all_reduce", "PREMUL_SUM"): NCCL_FLOATS,
    ("nccl", "broadcast", ""): NCCL_MOVES,
    ("nccl", "all_gather", ""): NCCL_MOVES,
    ("nccl", "gather", ""): NCCL_MOVES,
    ("nccl", "scatter", ""): NCCL_MOVES,
    ("nccl", "all_to_all", ""): NCCL_MOVES,
    ("nccl", "send", ""): NCCL_MOVES,
    ("hccl", "all_reduce", "SUM"): HCCL_REDUCES | {"uint8", "bool"},
    ("hccl", "reduce", "SUM"): HCCL_REDUCES,
    ("hccl", "reduce_scatter", "MAX"): HCCL_REDUCES,
    ("hccl", "all_reduce", "AVG"): HCCL_REDUCES,
    ("hccl", "all_reduce", "BAND"): set(),
    ("hccl", "all_reduce", "BOR"): set(),
    ("hccl", "all_reduce", "BXOR"): set(),
    ("hccl", "all_reduce", "PREMUL_SUM"): {"float16", "bfloat16", "float32"},
    ("hccl", "broadcast", ""): HCCL_MOVES,
    ("hccl", "all_gather", ""): HCCL_MOVES,
    ("hccl", "all_to_all_single", ""): HCCL_MOVES,
    ("hccl", "send", ""): HCCL_MOVES,
    ("hccl", "gather", ""): set(),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("backend", "op", "reduce_op"), list(EXPECTED))
def test_accelerators(backend, op, reduce_op, dtype):
    works = dtype in EXPECTED[backend, op, reduce_op]
    assert (unsupported(CallFacts(op, dtype, reduce_op), backend) is None) == works


@pytest.mark.parametrize(
    ("facts", "refused_by"),
    [
        (CallFacts("recv", "float32", any_source=True), ("nccl", "hccl")),
        (CallFacts("all_reduce", "float32", "SUM", contiguous=False), ("nccl", "hccl")),
        (CallFacts("send", "float32", contiguous=False), BACKENDS),
        (CallFacts("all_to_all_single", "float32", contiguous=False), BACKENDS),
        (CallFacts("all_reduce", "float32", "SUM", sparse=True), ("nccl", "hccl")),
        (CallFacts("broadcast", "float32", sparse=True), BACKENDS),
        (CallFacts("send", "float32", to_self=True), BACKENDS),
        (CallFacts("all_gather_into_tensor", "float32", ndim=0), ("gloo",)),
        (CallFacts("all_reduce", "float32", "SUM", ndim=0), ()),
        (CallFacts("all_to_all", "float32", ndim=0), ("hccl",)),
        (CallFacts("all_to_all", "float32", even=False), ("gloo",)),
        (CallFacts("all_gather", "float32", even=False), ("gloo",)),
        (CallFacts("all_gather_object"), ("nccl", "hccl")),
        (CallFacts("all_reduce", "float32", "SUM", device="cpu"), ("nccl", "hccl")),
        (CallFacts("all_reduce", "float32", "SUM", device="cuda"), ("gloo", "hccl")),
        (CallFacts("split_group"), ("gloo",)),
        (CallFacts("split_group", bound_device=True), ()),
        (CallFacts("monitored_barrier"), ("nccl", "hccl")),
        (CallFacts("barrier"), ()),
    ],
    ids=lambda value: value.op if isinstance(value, CallFacts) else "",
)
def test_besides_dtypes(facts, refused_by):
    assert tuple(backend for backend in BACKENDS if unsupported(facts, backend)) == refused_by


@pytest.mark.parametrize(
    ("facts", "backend", "reason"),
    [
        (
            CallFacts("all_reduce", "int64", "AVG"),
            "gloo",
            "gloo has no all_reduce with AVG of int64: use SUM and divide",
        ),
        (
            CallFacts("all_reduce", "float32", "PREMUL_SUM"),
            "gloo",
            "gloo has no all_reduce with PREMUL_SUM: scale before the call and use SUM",
        ),
        (
            CallFacts("all_reduce", "int64", "BOR"),
            "nccl",
            "NCCL has no all_reduce with BOR: gather and combine",
        ),
        (
            CallFacts("all_reduce", "float64", "SUM"),
            "hccl",
            "HCCL has all_reduce with SUM of float64 on its newest chips only: use float32",
        ),
        (
            CallFacts("all_reduce", "float32", "SUM", device="cpu"),
            "nccl",
            "NCCL has no backend for device cpu: move the tensor to cuda",
        ),
    ],
    ids=["avg", "premul", "bor", "f64", "cpu"],
)
def test_reasons_say_the_way_out(facts, backend, reason):
    assert unsupported(facts, backend) == reason


def test_events_are_taken_as_they_are():
    assert unsupported(call(0, dtype="uint16"), "gloo")
    assert unsupported(call(0), "fake") is None
    assert unsupported(call(1, "recv", peer=None, reduce_op=""), "nccl")
    assert unsupported(call(1, "send", peer=1, reduce_op=""), "gloo")
    assert unsupported(call(0, "all_gather_into_tensor", shapes=((),)), "gloo")
    assert unsupported(call(0, "all_to_all", shapes=((1,), (2,))), "gloo")


def test_an_unknown_backend_is_an_error():
    with pytest.raises(KeyError):
        unsupported(call(0), "mpi")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_docs_table_has_every_dtype(backend):
    header, rule, *rows = capability_table(backend).splitlines()
    assert all(f" {dtype} " in header for dtype in DTYPES)
    assert rule.count("|") == len(DTYPES) + 2
    assert any(row.startswith("| all_reduce SUM | yes") for row in rows)
