"""The slice protocol, explored: no order of events passes a cap or starves a call that fits.

The guard's own code runs against a model of the authority; the same machine runs against the real
SQL in tests/service/gateway/test_slices_machine.py.
"""

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "gateway" / "rig"))

from gateway_rig.slice_machine import slice_machine
from gateway_rig.slice_model import ModelWorld


@pytest.mark.parametrize(
    "amounts",
    [[(100, 0)], [(100, 60)], [(100, 0), (60, 60), (80, 0)]],
    ids=["lifetime", "window", "three caps"],
)
def test_no_order_of_events_breaks_the_protocol(amounts: list[tuple[int, int]]) -> None:
    worlds: list[ModelWorld] = []

    def make() -> ModelWorld:
        worlds.append(ModelWorld(amounts))
        return worlds[-1]

    try:
        run_state_machine_as_test(
            slice_machine(make),
            settings=settings(
                max_examples=60,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        for world in worlds:
            world.end()
