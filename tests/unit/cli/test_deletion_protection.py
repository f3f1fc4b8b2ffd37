"""`terrace down --stack` destroys nothing at all where it could not destroy everything."""

from typing import Any

import pytest

from terrace_cli.deletion_protection import find_protected

from .conftest import STANDING, Invoke
from .fake_users_pulumi import UsersPulumiOnPath

pytestmark = pytest.mark.usefixtures("files")

CLUSTER = "aws:eks/cluster:Cluster"
DATABASE = "aws:rds/cluster:Cluster"
BALANCER = "aws:lb/loadBalancer:LoadBalancer"


def resource(kind: str, name: str = "it", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "urn": f"urn:pulumi:aws-a::terrace::{kind}::{name}", **fields}


def protected(kind: str, *, flag: str = "deletionProtection") -> dict[str, Any]:
    return resource(kind, inputs={flag: True}, outputs={flag: True})


@pytest.mark.parametrize(
    ("kind", "flag", "setting"),
    [
        (CLUSTER, "deletionProtection", "terrace:aws.cluster.deletionProtection"),
        (DATABASE, "deletionProtection", "terrace:aws.database.deletionProtection"),
        (BALANCER, "enableDeletionProtection", "terrace:aws.loadBalancer.deletionProtection"),
    ],
)
def test_a_protected_substrate_keeps_its_platform_too(
    invoke: Invoke, pulumi: UsersPulumiOnPath, kind: str, flag: str, setting: str
) -> None:
    pulumi.state(stacks=STANDING, resources={"aws-a": [protected(kind, flag=flag)]})
    outcome = invoke("down", "--stack", "aws-a", "--yes")
    assert outcome.code == 1
    assert pulumi.changes() == [], "something was destroyed"
    assert "Nothing was destroyed" in outcome.err
    steps = (
        f"pulumi config set --stack aws-a --path '{setting}' false",
        "pulumi up --stack aws-a\n",
        "terrace down --stack aws-a\n",
    )
    places = [outcome.err.index(step) for step in steps]
    assert places == sorted(places)


def test_a_protected_platform_keeps_everything(invoke: Invoke, pulumi: UsersPulumiOnPath) -> None:
    kept = resource("kubernetes:core/v1:Secret", protect=True)
    pulumi.state(stacks=STANDING, resources={"aws-a-platform": [kept]})
    outcome = invoke("down", "--stack", "aws-a", "--yes")
    assert outcome.code == 1
    assert pulumi.changes() == []
    assert f"pulumi state unprotect --stack aws-a-platform --yes '{kept['urn']}'" in outcome.err
    assert "pulumi up" not in outcome.err, "no setting was changed"


def test_what_is_not_protected_or_stays_anyway_goes_down(
    invoke: Invoke, pulumi: UsersPulumiOnPath
) -> None:
    flag = {"deletionProtection": True}
    resources = [
        resource(CLUSTER, "off", inputs={"deletionProtection": False}, outputs={}),
        resource(DATABASE, "retained", inputs=flag, outputs=flag, retainOnDelete=True),
        resource(DATABASE, "read", outputs=flag, external=True),
        resource("aws:ec2/vpc:Vpc"),
    ]
    pulumi.state(stacks=STANDING, resources={"aws-a": resources})
    assert invoke("down", "--stack", "aws-a", "--yes").code == 0
    assert [argv[0] for argv in pulumi.changes()] == ["destroy", "destroy"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "found"),
    [
        # The setting was changed and brought up; a refresh saw that somebody turned it on by hand.
        ({"deletionProtection": False}, {"deletionProtection": True}, True),
        ({"deletionProtection": True}, {"deletionProtection": False}, False),
        ({"deletionProtection": True}, {}, True),
        ({}, {}, False),
    ],
)
def test_what_aws_said_last_decides(
    inputs: dict[str, bool], outputs: dict[str, bool], found: bool
) -> None:
    state = {"deployment": {"resources": [resource(CLUSTER, inputs=inputs, outputs=outputs)]}}
    assert bool(find_protected("aws-a", state)) is found


@pytest.mark.parametrize(
    "state", [{}, {"deployment": None}, {"deployment": {"resources": None}}], ids=str
)
def test_an_empty_state_protects_nothing(state: dict[str, Any]) -> None:
    assert find_protected("aws-a", state) == []


def test_a_type_without_a_setting_of_ours_is_refused_too() -> None:
    [found] = find_protected(
        "aws-a", {"deployment": {"resources": [protected("aws:dynamodb/table:Table")]}}
    )
    assert "in the program" in found.command
    assert "aws:dynamodb/table:Table" in found.command
