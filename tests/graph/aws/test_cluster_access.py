"""AwsCluster: who is administrator of a cluster, and who reaches its private endpoint."""

from typing import Any

import pulumi_aws as aws
import pytest

from terrace_components.aws.cluster_access import CREATOR_TAG

from .cloud import ACCOUNT, Cloud
from .eks_answers import CLUSTER_GROUP, answer_clusters
from .test_cluster import ADMIN, existing, make, private


@pytest.fixture
def eks(cloud: Cloud) -> Cloud:
    return answer_clusters(cloud)


def test_each_administrator_has_an_entry_and_the_policy(render: Any, eks: Cloud) -> None:
    other = "arn:aws:iam::123456789012:user/break-glass"
    graph = render(make(admins=[ADMIN, other]))
    entries, policies = graph.of("AccessEntry"), graph.of("AccessPolicyAssociation")
    assert {e.inputs["principalArn"] for e in entries} == {ADMIN, other}
    assert {p.inputs["principalArn"] for p in policies} == {ADMIN, other}
    assert all(p.inputs["accessScope"] == {"type": "cluster"} for p in policies)
    assert all("it-core" in graph.needs(e) for e in entries)


def test_an_administrator_keeps_its_name_when_others_come_and_go(render: Any, eks: Cloud) -> None:
    other = "arn:aws:iam::123456789012:role/Admin"
    alone = {r.name for r in render(make(admins=[ADMIN])).of("AccessEntry")}
    both = {r.name for r in render(make(admins=[other, ADMIN])).of("AccessEntry")}
    assert len(both) == 2
    assert alone < both


def test_clients_of_the_private_endpoint_get_in_by_port_443_alone(render: Any, eks: Cloud) -> None:
    groups = ["sg-0a1b2c3d", "sg-0a1b2c3e"]
    for program in (
        private(private_api_cidrs=["10.20.0.0/16"], api_client_security_group_ids=groups),
        make(private_api_cidrs=["10.20.0.0/16"], api_client_security_group_ids=groups),
    ):
        rules = [rule.inputs for rule in render(program).of("SecurityGroupIngressRule")]
        assert {rule["securityGroupId"] for rule in rules} == {CLUSTER_GROUP}
        ports = {(rule["ipProtocol"], rule["fromPort"], rule["toPort"]) for rule in rules}
        assert ports == {("tcp", 443, 443)}
        sources = [rule.get("cidrIpv4") or rule["referencedSecurityGroupId"] for rule in rules]
        assert sorted(sources) == ["10.20.0.0/16", *groups]
    assert not render(make()).of("SecurityGroupIngressRule")


def test_a_group_made_in_the_same_program_may_be_a_client(render: Any, eks: Cloud) -> None:
    def program() -> None:
        group = aws.ec2.SecurityGroup("runner", vpc_id="vpc-0a1b2c3d")
        private(private_api_cidrs=[], api_client_security_group_ids=[group.id])()

    graph = render(program)
    [rule] = graph.of("SecurityGroupIngressRule")
    assert "runner" in graph.needs(rule)
    assert rule.inputs["referencedSecurityGroupId"].startswith("sg-")


CALLERS = {
    "arn:aws:sts::123456789012:assumed-role/Admin/me@example.com": ADMIN,
    "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Admin_0a1b/me": (
        "arn:aws:iam::123456789012:role/aws-reserved/sso.amazonaws.com/AWSReservedSSO_Admin_0a1b"
    ),
    "arn:aws:sts::123456789012:assumed-role/a,b/me": "arn:aws:iam::123456789012:role/a,b",
    "arn:aws:iam::123456789012:user/team/me": "arn:aws:iam::123456789012:user/team/me",
}


def called_by(eks: Cloud, arn: str) -> None:
    answer = {"id": ACCOUNT, "accountId": ACCOUNT, "userId": "AROA0", "arn": arn}
    eks.answers["aws:index/getCallerIdentity:getCallerIdentity"] = answer


@pytest.mark.parametrize(("caller", "admin"), CALLERS.items())
@pytest.mark.parametrize("preview", [False, True])
def test_the_creator_is_refused_as_an_administrator(
    render: Any, eks: Cloud, caller: str, admin: str, preview: bool
) -> None:
    called_by(eks, caller)
    with pytest.raises(Exception, match=r"admins.* must not name") as raised:
        render(make(admins=[admin]), preview=preview)
    assert admin in str(raised.value)
    assert "Take it out of cluster.admins" in str(raised.value)


@pytest.mark.parametrize(
    "caller",
    [
        "arn:aws:sts::123456789012:assumed-role/Other/Admin",
        "arn:aws:sts::210987654321:assumed-role/Admin/me",
        "arn:aws:iam::123456789012:user/Admin",
        "arn:aws:iam::123456789012:root",
    ],
)
def test_others_are_not_the_creator(render: Any, eks: Cloud, caller: str) -> None:
    called_by(eks, caller)
    [entry] = render(make(admins=[ADMIN])).of("AccessEntry")
    assert entry.inputs["principalArn"] == ADMIN


def test_an_administrator_who_comes_later_keeps_its_entry(render: Any, eks: Cloud) -> None:
    """The tag is the first run's: the engine holds on to it, here the mock does."""
    called_by(eks, "arn:aws:sts::123456789012:assumed-role/Admin/me")
    eks.outputs["aws:iam/role:Role"] = lambda _, inputs: {
        "tags": {**inputs["tags"], CREATOR_TAG: "arn:aws:iam::123456789012:role/Creator"}
    }
    assert render(make(admins=[ADMIN])).of("AccessEntry")


def test_the_creator_of_an_existing_cluster_is_not_guessed(render: Any, eks: Cloud) -> None:
    called_by(eks, "arn:aws:sts::123456789012:assumed-role/Admin/me")
    assert render(existing(admins=[ADMIN])).of("AccessEntry")
