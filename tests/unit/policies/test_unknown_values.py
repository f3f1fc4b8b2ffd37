"""What is unknown at a preview is reported as unchecked, and hides nothing that is known."""

from typing import Any

import pytest
from policy_trials import broken, check, resource

from terrace_policies.evaluation import Result
from terrace_policies.model import Level
from terrace_policies.resources import Stack, Unknown

CLUSTER = "aws:eks/cluster:Cluster"
POD = "kubernetes:core/v1:Pod"
SAFE = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
    "capabilities": {"drop": ["ALL"]},
}
SIZE = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
IMAGE = "a@sha256:" + "0" * 64


def cluster(**change: Any) -> Stack:
    tree = {
        "accessConfig": {"authenticationMode": "API"},
        "enabledClusterLogTypes": ["api", "audit", "authenticator"],
        "encryptionConfig": {"provider": {"keyArn": Unknown()}, "resources": ["secrets"]},
        "vpcConfig": {"endpointPublicAccess": True, "publicAccessCidrs": ["203.0.113.0/24"]},
    }
    return Stack([resource(CLUSTER, "eks", **{**tree, **change})])


def pod(*containers: dict[str, Any], **spec: Any) -> Stack:
    tree = {"automountServiceAccountToken": False, "containers": list(containers), **spec}
    metadata = {"name": "p", "namespace": "trial"}
    return Stack([resource(POD, "p", apiVersion="v1", kind="Pod", metadata=metadata, spec=tree)])


def container(name: str = "app", **change: Any) -> dict[str, Any]:
    made = {"name": name, "image": IMAGE, "resources": SIZE, "securityContext": SAFE}
    return {**made, **change}


def unchecked(results: list[Result]) -> set[tuple[str, str]]:
    return {(r.rule.id, r.says.property) for r in results if r.unchecked}


def test_a_known_stack_has_nothing_unchecked() -> None:
    assert check(cluster()) == []
    assert check(pod(container())) == []


def test_a_value_that_only_has_to_be_there_may_be_unknown() -> None:
    assert isinstance(
        cluster().resources[0].value["encryptionConfig"]["provider"]["keyArn"], Unknown
    )
    assert check(cluster()) == []


@pytest.mark.parametrize(
    "cidrs", [Unknown(), ["203.0.113.0/24", Unknown()]], ids=["list", "element"]
)
def test_an_unknown_value_is_unchecked_and_advisory(cidrs: Any) -> None:
    access = {"endpointPublicAccess": True, "publicAccessCidrs": cidrs}
    (result,) = check(cluster(vpcConfig=access))
    assert result.unchecked
    assert result.level is Level.ADVISORY
    assert result.text.startswith("unchecked: eks-endpoint-not-open: eks: vpcConfig.publicAccess")
    assert result.text.endswith("unknown until the update")


def test_an_unknown_section_makes_each_rule_that_reads_it_unchecked() -> None:
    results = check(cluster(vpcConfig=Unknown(), accessConfig=Unknown()))
    assert unchecked(results) == {
        ("eks-endpoint-not-open", "vpcConfig"),
        ("eks-authentication-by-api", "accessConfig"),
    }
    assert broken(results) == set()


def test_an_unknown_item_does_not_hide_the_known_one_beside_it() -> None:
    open_rule = {"protocol": "tcp", "fromPort": 22, "toPort": 22, "cidrBlocks": ["0.0.0.0/0"]}
    unknown = {**open_rule, "cidrBlocks": Unknown()}
    kind = "aws:ec2/securityGroup:SecurityGroup"
    results = check(Stack([resource(kind, "g", ingress=[unknown, open_rule])]))
    rule = "security-group-admin-ports-closed"
    assert unchecked(results) == {(rule, "ingress[0].cidrBlocks")}
    assert [r.says.property for r in results if not r.unchecked] == ["ingress[1].cidrBlocks"]


def test_an_unknown_image_is_unchecked_for_that_container_and_rule_only() -> None:
    results = check(pod(container(image=Unknown()), container("other", image="other:latest")))
    assert unchecked(results) == {("pod-image-pinned", "spec.containers[0].image")}
    assert [(r.rule.id, r.says.property) for r in results if not r.unchecked] == [
        ("pod-image-pinned", "spec.containers[other].image")
    ]


def test_an_unknown_value_of_a_variable_is_no_literal_secret_yet() -> None:
    results = check(pod(container(env=[{"name": "URL", "value": Unknown()}])))
    assert unchecked(results) == {
        ("pod-without-literal-secrets", "spec.containers[0].env[0].value")
    }


def test_unknown_containers_leave_all_pod_rules_unchecked() -> None:
    spec = {"containers": Unknown(), "hostNetwork": True}
    unclear = resource(POD, "p", kind="Pod", metadata={"namespace": "a"}, spec=spec)
    results = check(Stack([unclear]))
    rules = {rule for rule, _ in unchecked(results)}
    assert {"pod-runs-as-non-root", "pod-image-pinned", "pod-drops-capabilities"} <= rules
    # This one has no need of containers, but of a variable that has: said, rather than guessed.
    assert "pod-not-in-host-namespaces" in rules


def test_a_document_that_is_unknown_is_unchecked_for_every_rule_on_it() -> None:
    kind = "aws:iam/policy:Policy"
    results = check(Stack([resource(kind, "p", policy=Unknown())]))
    assert {rule for rule, _ in unchecked(results)} == {
        "iam-no-wildcard-actions", "bedrock-no-wildcards", "bedrock-models-listed",
        "model-residency",
    }  # fmt: skip


def test_a_config_map_with_an_unknown_entry_is_unchecked() -> None:
    kind = "kubernetes:core/v1:ConfigMap"
    tree = {"metadata": {"namespace": "a"}, "data": {"a": Unknown(), "b": "c"}}
    results = check(Stack([resource(kind, "m", kind="ConfigMap", **tree)]))
    assert ("config-map-without-secrets", "data.a") in unchecked(results)
    assert broken(results) == set()


def test_an_object_of_the_wrong_shape_is_no_pass() -> None:
    results = check(pod(container(securityContext="none", image=7)))
    said = {r.rule.id: r.says for r in results}
    assert "cannot be judged" in getattr(said["pod-not-privileged"], "message", "")
    assert "cannot be judged" in getattr(said["pod-image-pinned"], "message", "")
