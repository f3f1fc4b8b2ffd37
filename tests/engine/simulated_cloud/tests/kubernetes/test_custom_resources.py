"""Charts, the definitions they bring, and what hangs when a controller is gone."""

import pytest
from kubernetes_api import Api, Object, add, add_nodes, thing

from simulated_cloud.lifecycle import PartialError
from simulated_cloud.models import CloudError

BINDING = thing(
    "TargetGroupBinding",
    spec={
        "serviceRef": {"name": "web", "port": 80},
        "targetGroupARN": "arn:tg",
        "targetType": "ip",
    },
)
RELEASE: Object = {
    "chart": "aws-load-balancer-controller",
    "name": "lbc",
    "namespace": "app",
    "version": "1.14.0",
    "values": {"clusterName": "main", "vpcId": "vpc-1", "replicaCount": 2},
}


@pytest.fixture
def with_identity(eks: Api) -> Api:
    identity = {
        "clusterName": "main",
        "namespace": "app",
        "serviceAccount": "aws-load-balancer-controller",
    }
    add(eks.inventory, "aws:eks/podIdentityAssociation:PodIdentityAssociation", "a-1", identity)
    add_nodes(eks)
    return eks


def test_a_custom_resource_needs_its_definition(eks: Api) -> None:
    with pytest.raises(CloudError, match='no matches for kind "TargetGroupBinding"'):
        eks.create(BINDING)


def test_a_controller_needs_an_identity_and_the_right_cluster(eks: Api) -> None:
    add_nodes(eks)
    with pytest.raises(PartialError, match="no Pod Identity association"):
        eks.create(RELEASE)
    with pytest.raises(PartialError, match="is not this cluster's name"):
        eks.create({**RELEASE, "name": "two", "values": {"clusterName": "other"}})


def test_a_binding_needs_its_target_group(with_identity: Api) -> None:
    with_identity.create(RELEASE)
    with pytest.raises(CloudError, match="target group 'arn:tg' does not exist"):
        with_identity.create(BINDING)
    group = {"arn": "arn:tg", "targetType": "ip"}
    add(with_identity.inventory, "aws:lb/targetGroup:TargetGroup", "tg", group)
    with_identity.create(BINDING)


def test_a_namespace_hangs_while_a_finalizer_has_no_controller(with_identity: Api) -> None:
    api = with_identity
    add(
        api.inventory, "aws:lb/targetGroup:TargetGroup", "tg", {"arn": "arn:tg", "targetType": "ip"}
    )
    release, binding = api.create(RELEASE), api.create(BINDING)
    namespace = next(i for i in api.cluster.items() if i.inputs.get("kind") == "Namespace")
    api.delete(release)
    for item in (binding, namespace):
        with pytest.raises(CloudError, match="there is no release of aws-load-balancer-controller"):
            api.delete(item)
    api.create(RELEASE)
    api.delete(namespace)
    left = {item.inputs.get("kind") for item in api.cluster.items()} - {None}
    assert left == {"CustomResourceDefinition"}  # what Helm leaves behind


def test_a_release_name_is_used_once(with_identity: Api) -> None:
    with_identity.create(RELEASE)
    with pytest.raises(CloudError, match="cannot re-use a name"):
        with_identity.create(RELEASE)
