"""From the release before, whose gateway was a Deployment, to the StatefulSet (decision 0006)."""

from pathlib import Path

import pytest
import yaml
from harness import Cloud, Engine, Stack
from test_local_and_existing_stacks import existing_stack

BEFORE = Path(__file__).parent / "release_before"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
STATEFUL_SET = "kubernetes:apps/v1:StatefulSet"
GATEWAY = "terrace-gateway/gateway"
WORKLOADS = {DEPLOYMENT, STATEFUL_SET}


@pytest.fixture
def before(engine: Engine) -> Stack:
    """The stack `existing` as the release before made it, with today's program to go on with."""
    stack = existing_stack(engine)
    project = stack.folder / "Pulumi.yaml"
    today = project.read_text()
    (stack.folder / "release_before").symlink_to(BEFORE)
    project.write_text(yaml.safe_dump({**yaml.safe_load(today), "main": "release_before"}))
    stack.up().must_work()
    project.write_text(today)
    return stack


def gateways(cloud: Cloud) -> set[str]:
    """The kinds of workloads that the gateway's Services select the pods of."""
    return {item.type for item in cloud.items("kubernetes:apps/v1:") if item.id == GATEWAY}


def test_the_service_has_pods_throughout(before: Stack, cloud: Cloud) -> None:
    assert gateways(cloud) == {DEPLOYMENT}
    seen = len(cloud.calls())
    before.up().must_work()
    assert gateways(cloud) == {STATEFUL_SET}
    calls = [call for call in cloud.calls()[seen:] if call.id == GATEWAY or GATEWAY in call.name]
    changes = [
        (call.operation, call.type)
        for call in calls
        if call.type in WORKLOADS and call.operation in ("create", "delete")
    ]
    # A create is in the books when its pods are ready: until then the old ones serve.
    assert changes == [("create", STATEFUL_SET), ("delete", DEPLOYMENT)]
    services = [call for call in cloud.calls()[seen:] if call.type == "kubernetes:core/v1:Service"]
    assert {call.id for call in services if call.operation == "delete"} == set()
    before.must_be_steady()
    before.destroy().must_work()
    cloud.must_be_empty()


def test_the_old_pods_stay_while_the_new_ones_do_not_get_ready(before: Stack, cloud: Cloud) -> None:
    cloud.fail(on=STATEFUL_SET, remaining=1)
    before.up().must_fail()
    assert DEPLOYMENT in gateways(cloud)
    cloud.heal()
    before.up().must_work()
    assert gateways(cloud) == {STATEFUL_SET}
    before.must_be_steady()
