"""The text of faults, whom they address, and at which call they fire."""

from __future__ import annotations

import pytest
from checker_traces import call

from meshlib import MeshPlan, ParallelDims, UnknownAxis
from meshsim.errors import UsageError
from meshsim.faults import Fault, FaultInjector, fired_fault, parse_faults

PLAN = MeshPlan.build(ParallelDims.parse("dp=2,tp=2"), 4)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rank=3:crash@all_reduce#5", Fault((("rank", 3),), "crash", "all_reduce", 5)),
        ("tp=1:delay=0.5@*", Fault((("tp", 1),), "delay", "*", None, 0.5)),
        ("dp=0,tp=1:nan@broadcast", Fault((("dp", 0), ("tp", 1)), "nan", "broadcast")),
        ("rank=0:raise@*#2", Fault((("rank", 0),), "raise", "*", 2)),
        ("rank=1:delay=2@send#1", Fault((("rank", 1),), "delay", "send", 1, 2.0)),
    ],
)
def test_text_and_back(text, fault):
    assert Fault.parse(text) == fault
    assert str(fault) == text


def test_spaces_are_forgiven():
    assert Fault.parse(" dp=0, tp=1:hang@barrier ") == Fault((("dp", 0), ("tp", 1)), "hang", "barrier")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the form is rank=3:crash@all_reduce#5"),
        ("rank=3", "the form is"),
        ("crash@all_reduce", "the form is"),
        ("3:crash@all_reduce", "address '3'"),
        ("rank=x:crash@*", "rank must be a whole number, got 'x'"),
        ("rank=1.5:crash@*", "rank must be a whole number"),
        ("rank=-1:crash@*", "count from 0"),
        ("rank=1:explode@*", "unknown action 'explode', known are crash, raise"),
        ("rank=1:crash@*#0", "count after # is from 1"),
        ("rank=1:crash@*#x", "count after # must be a whole number"),
        ("rank=1:delay@*", "a delay needs its seconds"),
        ("rank=1:crash=2@*", "a delay needs its seconds, and nothing else takes any"),
        ("rank=1:delay=soon@*", "in seconds, got 'soon'"),
        ("rank=1:delay=-1@*", "from 0 on, got -1"),
        ("rank=1:delay=nan@*", "finite"),
        ("rank=1,tp=0:crash@*", "not both"),
        ("tp=1,tp=0:crash@*", "each of its axes once"),
        ("rank=1:crash@all reduce", "no operation's name"),
        ("rank=1:crash@new_group", "don't fire at new_group; name a collective, send or recv, or *"),
    ],
)
def test_mistakes_are_named(text, says):
    with pytest.raises(UsageError) as raised:
        Fault.parse(text)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("rank=3:nan@*", [3]), ("tp=1:nan@*", [1, 3]), ("dp=1:nan@*", [2, 3]), ("dp=1,tp=0:nan@*", [2])],
)
def test_whom_a_fault_addresses(text, ranks):
    assert [rank for rank in range(4) if Fault.parse(text).matches_rank(rank, PLAN)] == ranks


@pytest.mark.parametrize(
    ("text", "says"), [("rank=4:nan@*", "valid are 0 to 3"), ("tp=2:nan@*", "tp=2 is out of range")]
)
def test_addresses_outside_the_plan(text, says):
    with pytest.raises(UsageError, match=says):
        parse_faults([text], PLAN)


def test_an_unknown_axis_lists_the_known_ones():
    with pytest.raises(UnknownAxis, match="tp"):
        parse_faults(["xp=0:nan@*"], PLAN)


def test_text_and_faults_may_be_mixed():
    fault = Fault.parse("rank=0:nan@*")
    assert parse_faults([fault, "rank=0:nan@*"], PLAN) == (fault, fault)


def fires(text, *ops, rank=0):
    injector = FaultInjector([Fault.parse(text)], rank, PLAN)
    return [injector.before(call(rank, op)) is not None for op in ops]


def test_the_nth_call_of_an_operation():
    ops = ("all_reduce", "broadcast", "all_reduce", "all_reduce")
    assert fires("rank=0:nan@all_reduce#2", *ops) == [False, False, True, False]


def test_the_nth_call_of_any_operation():
    assert fires("rank=0:nan@*#2", "all_reduce", "broadcast", "all_reduce") == [False, True, False]


def test_without_a_count_it_is_the_first():
    assert fires("rank=0:nan@broadcast", "all_reduce", "broadcast", "broadcast") == [False, True, False]


def test_a_delay_without_a_count_is_every_call():
    assert fires("rank=0:delay=1@*", "all_reduce", "broadcast") == [True, True]


def test_other_ranks_are_left_alone():
    assert fires("rank=0:nan@*", "all_reduce", rank=1) == [False]
    assert not FaultInjector([Fault.parse("rank=0:nan@*")], 1, PLAN)


def test_our_own_calls_do_not_count():
    injector = FaultInjector([Fault.parse("rank=0:nan@*")], 0, PLAN)
    assert injector.before(call(0, internal=True)) is None
    assert injector.before(call(0)) is not None


def test_every_fault_counts_for_itself():
    injector = FaultInjector([Fault.parse("rank=0:nan@*"), Fault.parse("rank=0:hang@*#2")], 0, PLAN)
    assert [str(injector.before(call(0)) or "") for _ in range(3)] == ["rank=0:nan@*", "rank=0:hang@*#2", ""]


def test_a_delay_hides_no_other_fault():
    faults = [Fault.parse(text) for text in ("rank=0:delay=1@*", "rank=0:crash@all_reduce#2")]
    injector = FaultInjector(faults, 0, PLAN)
    assert [str(injector.before(call(0))) for _ in range(3)] == [
        "rank=0:delay=1@*",
        "rank=0:crash@all_reduce#2",
        "rank=0:delay=1@*",
    ]


def test_isend_is_a_send():
    assert fires("rank=0:raise@isend#2", "send", "recv", "send") == [False, False, True]


def test_damage_waits_for_a_call_with_data():
    injector = FaultInjector([Fault.parse("rank=0:nan@*"), Fault.parse("rank=0:bitflip@*#1")], 0, PLAN)
    assert injector.before(call(0, "barrier"), gives_tensor=False) is None
    assert str(injector.before(call(0))) == "rank=0:nan@*"
    assert injector.before(call(0)) is None


def test_what_fired_is_noted_in_the_event():
    injector = FaultInjector([Fault.parse("tp=0:delay=0.5@*")], 0, PLAN)
    event = call(0, note="something else")
    fault = injector.before(event)
    assert event.note == "fault: tp=0:delay=0.5@*; something else"
    assert fired_fault(event) == fault
    assert fired_fault(call(0)) is None
