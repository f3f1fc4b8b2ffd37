"""EKS: what is refused at Create, because of what exists."""

from typing import Any

import pytest
from account import Refused
from refusal import MISSING_KEY, MISSING_ROLE, Case, refused_then_made
from standing import Standing


def cluster(s: Standing, **more: Any) -> dict[str, Any]:
    return {"roleArn": s.cluster_role, "vpcConfig": {"subnetIds": s.subnets}, **more}


CASES: list[Case] = [
    (
        "aws:eks/cluster:Cluster",
        cluster,
        lambda s: cluster(s, vpcConfig={"subnetIds": s.subnets[:1]}),
        "at least two zones",
    ),
    (
        "aws:eks/cluster:Cluster",
        cluster,
        lambda s: cluster(s, vpcConfig={"subnetIds": [s.subnets[0], s.other_subnets[1]]}),
        "one VPC",
    ),
    (
        "aws:eks/cluster:Cluster",
        cluster,
        lambda s: cluster(
            s, vpcConfig={"subnetIds": s.subnets, "securityGroupIds": [s.other_group]}
        ),
        "belongs to",
    ),
    (
        "aws:eks/cluster:Cluster",
        cluster,
        lambda s: cluster(s, roleArn=MISSING_ROLE),
        "does not exist",
    ),
    (
        "aws:eks/cluster:Cluster",
        cluster,
        lambda s: cluster(s, roleArn=s.node_role),
        "does not allow eks.amazonaws.com",
    ),
    (
        "aws:eks/cluster:Cluster",
        lambda s: cluster(s, kubernetesNetworkConfig={"serviceIpv4Cidr": "10.2.0.0/16"}),
        lambda s: cluster(s, kubernetesNetworkConfig={"serviceIpv4Cidr": "10.0.0.0/20"}),
        "overlaps",
    ),
    (
        "aws:eks/cluster:Cluster",
        lambda s: cluster(
            s, encryptionConfig={"provider": {"keyArn": s.key}, "resources": ["secrets"]}
        ),
        lambda s: cluster(
            s, encryptionConfig={"provider": {"keyArn": MISSING_KEY}, "resources": ["secrets"]}
        ),
        "KMS key",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        lambda s: s.with_cni().node_group(),
        lambda s: s.node_group(),
        "NodeCreationFailure",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        lambda s: s.with_cni().node_group(),
        lambda s: {**s.with_cni().node_group(), "subnetIds": s.other_subnets},
        "the VPC of",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        lambda s: s.with_cni().node_group(),
        lambda s: {**s.with_cni().node_group(), "version": "1.35"},
        "above 1.34",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        lambda s: s.with_cni().node_group(),
        lambda s: {**s.with_cni().node_group(), "nodeRoleArn": s.cluster_role},
        "does not allow ec2.amazonaws.com",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        lambda s: s.with_cni().node_group(),
        lambda s: {**s.with_cni().node_group(), "clusterName": "nothing"},
        "no cluster found",
    ),
    (
        "aws:eks/addon:Addon",
        lambda s: {
            "clusterName": s.cluster,
            "addonName": "kube-proxy",
            "addonVersion": "v1.34.0-eksbuild.2",
        },
        lambda s: {
            "clusterName": s.cluster,
            "addonName": "kube-proxy",
            "addonVersion": "v1.35.0-eksbuild.2",
        },
        "not for Kubernetes 1.34",
    ),
    (
        "aws:eks/addon:Addon",
        lambda s: {"clusterName": s.cluster, "addonName": "vpc-cni"},
        lambda s: {"clusterName": s.cluster, "addonName": "vpc-cnl"},
        "did you mean 'vpc-cni'",
    ),
    (
        "aws:eks/addon:Addon",
        lambda s: {"clusterName": s.cluster, "addonName": "vpc-cni"},
        lambda s: {"clusterName": s.cluster, "addonName": "coredns"},
        "InsufficientNumberOfReplicas",
    ),
    (
        "aws:eks/accessEntry:AccessEntry",
        lambda s: {"clusterName": s.cluster, "principalArn": s.pod_role},
        lambda s: {"clusterName": s.cluster, "principalArn": MISSING_ROLE},
        "does not exist",
    ),
    (
        "aws:eks/podIdentityAssociation:PodIdentityAssociation",
        lambda s: {
            "clusterName": s.cluster,
            "namespace": "a",
            "serviceAccount": "b",
            "roleArn": s.pod_role,
        },
        lambda s: {
            "clusterName": s.cluster,
            "namespace": "a",
            "serviceAccount": "b",
            "roleArn": s.node_role,
        },
        "pods.eks.amazonaws.com",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_refused(standing: Standing, case: Case) -> None:
    refused_then_made(standing, case)


def test_a_cluster_goes_forwards_only(standing: Standing) -> None:
    account, id = standing.account, standing.cluster
    now = {
        **cluster(standing),
        "name": id,
        "version": "1.34",
        "accessConfig": {"authenticationMode": "API"},
    }
    account.update("aws:eks/cluster:Cluster", id, {**now, "version": "1.35"})
    for change, words in (
        ({"version": "1.34"}, "cannot go back from 1.35"),
        (
            {"version": "1.35", "accessConfig": {"authenticationMode": "API_AND_CONFIG_MAP"}},
            "cannot go back from API",
        ),
    ):
        with pytest.raises(Refused, match=words):
            account.update("aws:eks/cluster:Cluster", id, {**now, **change})


ENTRY = "aws:eks/accessEntry:AccessEntry"


def test_the_creator_of_a_cluster_has_an_entry_and_gets_no_second(standing: Standing) -> None:
    account, id = standing.account, standing.cluster
    arn = account.invoke("aws:index/getCallerIdentity:getCallerIdentity")["arn"]
    name = arn.split("/")[1]
    role = f"arn:aws:iam::123456789012:role/{name}"
    trust = {
        "assumeRolePolicy": account.inventory.items(type="aws:iam/role:Role")[0].inputs[
            "assumeRolePolicy"
        ]
    }
    account.create("aws:iam/role:Role", {"name": name, **trust}, "caller")
    with pytest.raises(Refused, match="ResourceInUseException"):
        account.create(ENTRY, {"clusterName": id, "principalArn": role}, "mine")
    account.delete("aws:eks/cluster:Cluster", id)
    assert not account.inventory.items(type=ENTRY)


@pytest.mark.parametrize(
    "access",
    [
        {"authenticationMode": "CONFIG_MAP"},
        {"authenticationMode": "API", "bootstrapClusterCreatorAdminPermissions": False},
    ],
)
def test_no_entry_where_there_are_none_or_none_is_wanted(
    standing: Standing, access: dict[str, Any]
) -> None:
    before = standing.account.inventory.items(type=ENTRY)
    inputs = cluster(standing, name="other", accessConfig=access)
    standing.account.create("aws:eks/cluster:Cluster", inputs, "other")
    assert standing.account.inventory.items(type=ENTRY) == before
