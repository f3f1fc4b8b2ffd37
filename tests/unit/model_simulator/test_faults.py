"""Switches: what a call meets, and when a switch is used up."""

import pytest
from pydantic import ValidationError

from terrace_model_simulator.faults import Fault, FaultBoard, FaultsOfCall


def board(*faults: Fault) -> FaultBoard:
    made = FaultBoard()
    made.replace(list(faults))
    return made


def test_without_switches_a_call_meets_nothing() -> None:
    assert board().take("m") == FaultsOfCall()


def test_remaining_counts_only_the_calls_that_meet_it() -> None:
    made = board(Fault(model="a", kind="status", status=429, remaining=2))
    assert [made.take(model).status for model in ("b", "a", "b", "a", "a")] == [
        None,
        429,
        None,
        429,
        None,
    ]
    assert made.current() == []


def test_kinds_add_up_and_the_first_of_a_kind_wins() -> None:
    met = board(
        Fault(kind="latency", seconds=1.5),
        Fault(model="m", kind="latency", seconds=9),
        Fault(kind="chunk_latency", seconds=0.5),
        Fault(kind="disconnect", after_chunks=3),
        Fault(kind="no_usage"),
    ).take("m")
    assert met == FaultsOfCall(latency=1.5, chunk_latency=0.5, disconnect_after=3, no_usage=True)


@pytest.mark.parametrize("refusing", [Fault(kind="status", status=500), Fault(kind="hang")])
def test_a_refusal_uses_up_nothing_else(refusing: Fault) -> None:
    made = board(Fault(kind="disconnect", after_chunks=1, remaining=1), refusing)
    assert made.take("m").disconnect_after is None
    assert len(made.current()) == 2


def test_replacing_does_not_use_up_the_callers_objects() -> None:
    fault = Fault(kind="hang", remaining=1)
    board(fault).take("m")
    assert fault.remaining == 1


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kind": "status"}, "status"),
        ({"kind": "latency"}, "seconds"),
        ({"kind": "chunk_latency"}, "seconds"),
        ({"kind": "disconnect"}, "after_chunks"),
        ({"kind": "explode"}, "kind"),
        ({"kind": "hang", "remaining": 0}, "remaining"),
        ({"kind": "status", "status": 200}, "status"),
        ({"kind": "hang", "afterchunks": 1}, "afterchunks"),
    ],
)
def test_a_wrong_switch_is_refused_by_name(values: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Fault.model_validate(values)
