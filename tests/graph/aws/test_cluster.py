"""AwsCluster: who reaches the API, who is administrator, what pulumi-eks is told."""

import base64
import json
import typing
from typing import Any

import pulumi
import pulumi_aws as aws
import pytest
from pulumi.runtime.mocks import MockMonitor

import terrace_components as components
from terrace_components.aws.cluster import kubeconfig

from .cloud import Cloud, documents
from .contract import check_component
from .eks_answers import AUTHORITY, CLUSTER_GROUP, answer_clusters

KEY = "arn:aws:kms:eu-west-1:123456789012:key/0a1b2c3d-0000-4000-8000-000000000000"
ADMIN = "arn:aws:iam::123456789012:role/platform/Admin"
NEEDED: dict[str, Any] = {
    "vpc_id": "vpc-0a1b2c3d",
    "subnet_ids": ["subnet-0a1b2c3d", "subnet-0a1b2c3e"],
    "secrets_key_arn": KEY,
    "api_access_cidrs": ["203.0.113.0/24"],
}
EXISTING: dict[str, Any] = {"existing": {"name": "theirs"}}
VARIANTS: dict[str, dict[str, Any]] = {
    "every": {
        **NEEDED,
        "private_api_cidrs": ["10.20.0.0/16"],
        "api_client_security_group_ids": ["sg-0a1b2c3d"],
        "admins": [ADMIN],
        "kubernetes_version": "1.34",
        "support": "EXTENDED",
        "service_cidr": "192.168.0.0/20",
        "log_types": ["audit"],
        "log_retention_days": 365,
        "log_key_arn": KEY,
        "deletion_protection": False,
        "tags": {"team": "platform"},
    },
    "private": {
        **{key: value for key, value in NEEDED.items() if key != "api_access_cidrs"},
        "private_api": True,
        "private_api_cidrs": ["10.20.0.0/16", "192.168.7.0/24"],
    },
    "existing": {**EXISTING, "admins": [ADMIN]},
}


@pytest.fixture
def eks(cloud: Cloud) -> Cloud:
    return answer_clusters(cloud)


def make(**changes: Any) -> Any:
    args = {**NEEDED, **changes}
    args = {key: value for key, value in args.items() if value is not None}
    return lambda: components.AwsCluster("it", typing.cast(Any, args))


def exported(**changes: Any) -> Any:
    def program() -> None:
        made = make(**changes)()
        for output in components.AwsCluster.__annotations__:
            pulumi.export(output, getattr(made, output))

    return program


def private(**more: Any) -> Any:
    more = {"private_api_cidrs": ["10.20.0.0/16"], **more}
    return exported(private_api=True, api_access_cidrs=None, **more)


def existing(**more: Any) -> Any:
    return exported(**dict.fromkeys(NEEDED), **EXISTING, **more)


def test_pulumi_eks_is_told_to_leave_the_rest_to_us(render: Any, eks: Cloud) -> None:
    told = render(make()).one("Cluster").inputs
    assert told["skipDefaultNodeGroup"] is True
    assert told["skipDefaultSecurityGroups"] is True
    assert told["useDefaultVpcCni"] is True
    assert told["createInstanceRole"] is False
    assert told["createOidcProvider"] is False
    assert told["bootstrapSelfManagedAddons"] is False
    assert told["corednsAddonOptions"] == {"enabled": False}
    assert told["kubeProxyAddonOptions"] == {"enabled": False}
    assert told["authenticationMode"] == "API"
    assert told["encryptionConfigKeyArn"] == KEY
    assert told["upgradePolicy"] == {"supportType": "STANDARD"}
    assert told["deletionProtection"] is True
    assert (told["endpointPrivateAccess"], told["endpointPublicAccess"]) == (True, True)
    assert told["publicAccessCidrs"] == ["203.0.113.0/24"]
    assert set(told["enabledClusterLogTypes"]) == {
        "api", "audit", "authenticator", "controllerManager", "scheduler"
    }  # fmt: skip


def test_a_private_api_has_no_public_endpoint(render: Any, eks: Cloud) -> None:
    told = render(private()).one("Cluster").inputs
    assert told["endpointPublicAccess"] is False
    assert "publicAccessCidrs" not in told


def test_the_log_group_is_there_before_the_cluster_and_has_its_name(
    render: Any, eks: Cloud
) -> None:
    graph = render(make(log_retention_days=365, log_key_arn=KEY))
    cluster, [logs] = graph.one("Cluster"), graph.of("LogGroup")
    assert logs.inputs["name"] == f"/aws/eks/{cluster.inputs['name']}/cluster"
    assert (logs.inputs["retentionInDays"], logs.inputs["kmsKeyId"]) == (365, KEY)
    assert {"it-logs", "it-eks-policy"} <= graph.needs(cluster)


def test_no_name_is_fixed(render: Any, eks: Cloud) -> None:
    graph = render(make())
    [role] = graph.of("Role")
    assert "name" not in role.inputs
    assert graph.one("Cluster").inputs["name"].startswith("it-eks-")


def test_arns_know_their_partition(render: Any, eks: Cloud) -> None:
    eks.answers["aws:index/getPartition:getPartition"] = {
        "id": "aws-us-gov", "partition": "aws-us-gov", "dnsSuffix": "amazonaws.com",
        "reverseDnsPrefix": "com.amazonaws",
    }  # fmt: skip
    graph = render(make(admins=[ADMIN]))
    policies = {r.inputs["policyArn"] for r in graph.resources if "policyArn" in r.inputs}
    assert policies == {
        "arn:aws-us-gov:iam::aws:policy/AmazonEKSClusterPolicy",
        "arn:aws-us-gov:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
    }


def test_outputs_are_what_eks_says(render: Any, eks: Cloud) -> None:
    outputs = render(exported()).outputs
    assert outputs["name"].startswith("it-eks-")
    assert outputs["endpoint"] == "https://0123ABCD.gr7.eu-west-1.eks.amazonaws.com"
    assert outputs["certificate_authority"] == AUTHORITY
    assert outputs["security_group_id"] == CLUSTER_GROUP
    assert outputs["version"] == "1.35"
    assert (outputs["service_cidr"], outputs["api_address"]) == ("172.20.0.0/16", "172.20.0.1")
    assert outputs["arn"].endswith(f":cluster/{outputs['name']}")


def test_the_kubeconfig_asks_aws_for_a_token_and_holds_none(render: Any, eks: Cloud) -> None:
    outputs = render(exported()).outputs
    config = json.loads(outputs["kubeconfig"])
    [user] = config["users"]
    assert set(user["user"]) == {"exec"}
    run = user["user"]["exec"]
    assert [run["command"], *run["args"]] == [
        "aws", "--region", "eu-west-1", "eks", "get-token",
        "--cluster-name", outputs["name"], "--output", "json",
    ]  # fmt: skip
    [cluster] = config["clusters"]
    assert cluster["cluster"]["server"] == outputs["endpoint"]
    assert base64.b64decode(cluster["cluster"]["certificate-authority-data"])
    [context] = config["contexts"]
    assert config["current-context"] == context["name"]
    assert context["context"] == {"cluster": cluster["name"], "user": user["name"]}


def test_the_kubeconfig_is_the_same_text_for_the_same_cluster() -> None:
    """A changed text replaces the Kubernetes provider, and with it all objects."""
    assert kubeconfig("a", "b", "c", "d") == kubeconfig("a", "b", "c", "d")


def test_nothing_is_made_of_a_cluster_that_exists(render: Any, eks: Cloud) -> None:
    graph = render(existing(admins=[ADMIN]))
    made = {r.type for r in graph.resources if not r.type.startswith("pulumi:")}
    assert made == {
        "terrace:index:AwsCluster",
        "aws:eks/accessEntry:AccessEntry",
        "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
    }
    assert graph.outputs["name"] == "theirs"
    assert graph.outputs["security_group_id"] == CLUSTER_GROUP


def test_an_existing_cluster_must_know_access_entries(render: Any, cloud: Cloud) -> None:
    answer_clusters(cloud, mode="CONFIG_MAP")
    with pytest.raises(Exception, match="authenticationMode=API_AND_CONFIG_MAP") as raised:
        render(existing())
    assert "existing.name" in str(raised.value)


@pytest.mark.parametrize("mode", ["API", "API_AND_CONFIG_MAP"])
def test_these_modes_know_access_entries(render: Any, cloud: Cloud, mode: str) -> None:
    answer_clusters(cloud, mode=mode)
    assert render(existing()).outputs["name"] == "theirs"


def test_a_preview_of_a_new_cluster_registers_all_and_knows_nothing_of_it(
    render: Any, eks: Cloud
) -> None:
    known, unknown = (
        render(exported(admins=[ADMIN])),
        render(exported(admins=[ADMIN]), preview=True),
    )
    assert sorted((r.type, r.name) for r in unknown.resources) == sorted(
        (r.type, r.name) for r in known.resources
    )
    assert "kubeconfig" not in unknown.outputs


def test_a_cluster_that_does_not_exist_yet_is_not_asked_for(render: Any, eks: Cloud) -> None:
    render(exported(), preview=True)
    assert "aws:eks/getCluster:getCluster" not in {token for token, _ in eks.calls}


def test_the_component_keeps_the_contract(
    render: Any, snapshot: Any, house_rules: Any, eks: Cloud
) -> None:
    check_component(render, snapshot, house_rules, "AwsCluster", VARIANTS)


def test_a_provider_of_the_callers_is_handed_on(
    render: Any, eks: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To our own children, and to pulumi-eks, which makes its own (pulumi-eks#555)."""
    handed: dict[str, dict[str, str]] = {}
    register = MockMonitor.RegisterResource

    def watch(self: Any, request: Any) -> Any:
        handed[request.type] = dict(request.providers)
        return register(self, request)

    monkeypatch.setattr(MockMonitor, "RegisterResource", watch)

    def program() -> None:
        theirs = aws.Provider("theirs", region="eu-west-1")
        components.AwsCluster(
            "it", typing.cast(Any, NEEDED), opts=pulumi.ResourceOptions(providers=[theirs])
        )

    graph = render(program)
    assert "::theirs::" in handed["eks:index:Cluster"]["aws"]
    children = [r for r in graph.resources if r.type.startswith("aws:")]
    assert children
    assert {child.provider for child in children} == {"theirs"}


def test_house_rules(render: Any, eks: Cloud, house_rules: Any) -> None:
    house_rules(render(make(admins=[ADMIN], tags={"team": "a"})), "it", tags={"team": "a"})


def test_who_may_take_the_role(render: Any, eks: Cloud) -> None:
    [trust] = documents(render(make()))
    assert trust["Statement"][0]["Principal"] == {"Service": "eks.amazonaws.com"}


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"vpc_id": None}, "vpc_id", "required unless existing"),
        ({"vpc_id": "my-vpc"}, "vpc_id", "vpc-0a1b2c3d"),
        ({"subnet_ids": None}, "subnet_ids", "required unless existing"),
        ({"subnet_ids": ["subnet-0a1b2c3d"]}, "subnet_ids", "at least 2"),
        ({"subnet_ids": ["subnet-0a1b2c3d"] * 2}, "subnet_ids", "once"),
        ({"secrets_key_arn": None}, "secrets_key_arn", "required unless existing"),
        ({"secrets_key_arn": "alias/mine"}, "secrets_key_arn", "not of an alias"),
        ({"api_access_cidrs": None}, "api_access_cidrs", "private_api: true"),
        ({"api_access_cidrs": []}, "api_access_cidrs", "private_api: true"),
        ({"api_access_cidrs": ["0.0.0.0/0"]}, "api_access_cidrs", "most of the internet"),
        ({"api_access_cidrs": ["0.0.0.0/1", "128.0.0.0/1"]}, "api_access_cidrs", "/8"),
        ({"api_access_cidrs": ["10.0.0.0/8"]}, "api_access_cidrs", "is private"),
        ({"api_access_cidrs": ["203.0.113.7/24"]}, "api_access_cidrs.0", "203.0.113.0/24"),
        ({"api_access_cidrs": ["::/0"]}, "api_access_cidrs.0", "IPv4"),
        ({"api_access_cidrs": ["office"]}, "api_access_cidrs.0", "address range"),
        ({"api_access_cidrs": ["203.0.113.0/24"] * 2}, "api_access_cidrs", "once"),
        (
            {"api_access_cidrs": [f"203.0.113.{n}/32" for n in range(41)]},
            "api_access_cidrs",
            "at most 40",
        ),
        ({"private_api": True}, "api_access_cidrs", "must be empty"),
        (
            {"private_api": True, "api_access_cidrs": None},
            "private_api_cidrs",
            "at least one range",
        ),
        ({"private_api_cidrs": ["10.20.0.7/16"]}, "private_api_cidrs.0", "10.20.0.0/16"),
        ({"private_api_cidrs": ["0.0.0.0/0"]}, "private_api_cidrs", "none wider than /8"),
        ({"private_api_cidrs": ["10.0.0.0/8"] * 2}, "private_api_cidrs", "once"),
        ({"api_client_security_group_ids": ["runner"]}, "api_client_security_group_ids.0", "sg-"),
        ({"kubernetes_version": "1.31"}, "kubernetes_version", "from 1.32"),
        ({"kubernetes_version": "latest"}, "kubernetes_version", "such as 1.35"),
        ({"kubernetes_version": "1.35.2"}, "kubernetes_version", "minor version"),
        ({"support": "LONG"}, "support", "STANDARD, EXTENDED"),
        ({"log_types": ["everything"]}, "log_types.0", "controllerManager"),
        ({"log_types": ["api", "api"]}, "log_types", "once"),
        ({"log_retention_days": 91}, "log_retention_days", "90"),
        ({"log_key_arn": "key"}, "log_key_arn", "KMS key"),
        ({"service_cidr": "203.0.113.0/24"}, "service_cidr", "172.16.0.0/12"),
        ({"service_cidr": "172.20.0.0/25"}, "service_cidr", "/12 to /24"),
        ({"admins": ["Admin"]}, "admins", "ARNs of IAM roles or users"),
        ({"admins": [ADMIN, ADMIN]}, "admins", "once"),
        (
            {"admins": ["arn:aws:sts::123456789012:assumed-role/Admin/me"]},
            "admins",
            "the role itself",
        ),
        ({"deletion_protection": "perhaps"}, "deletion_protection", "boolean"),
        ({"tags": {"aws:mine": "x"}}, "tags", "aws:"),
        ({"existing": {"name": "theirs"}}, "api_access_cidrs", "together with existing"),
        ({"existing": {"name": "a b"}}, "existing.name", "pattern"),
        ({"existing": {}}, "existing.name", "is required"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, eks: Cloud, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(**changes), path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kubernetes_version", "1.35"),
        ("private_api", True),
        ("private_api_cidrs", ["10.20.0.0/16"]),
        ("api_client_security_group_ids", ["sg-0a1b2c3d"]),
        ("log_types", ["api"]),
        ("log_retention_days", 90),
        ("log_key_arn", KEY),
        ("service_cidr", "172.20.0.0/16"),
        ("deletion_protection", False),
        ("support", "STANDARD"),
        *NEEDED.items(),
    ],
)
def test_an_existing_cluster_keeps_its_own_settings(
    refused: Any, eks: Cloud, key: str, value: Any
) -> None:
    args: dict[str, Any] = {**EXISTING, key: value}
    reason = refused(lambda: components.AwsCluster("it", typing.cast(Any, args)), key)
    assert "existing" in reason


def test_the_endpoint_is_open_to_named_ranges_only(render: Any, eks: Cloud) -> None:
    """Whatever is accepted: nothing in the graph is open to everybody."""
    graph = render(make(api_access_cidrs=["203.0.113.0/24", "198.51.100.7/32"]))
    assert "0.0.0.0/0" not in json.dumps([r.inputs for r in graph.resources])
