"""What never becomes ready in the simulated cluster, and what the events say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_api import (
    CONTAINER,
    SERVICE,
    Api,
    Object,
    add,
    add_nodes,
    changed,
    deployment,
    thing,
)

from simulated_cloud.lifecycle import PartialError


@pytest.mark.parametrize("source", ["configMapRef", "secretRef"])
def test_a_workload_waits_for_what_it_reads(api: Api, source: str) -> None:
    container = {"name": "web", "image": "web:1", "envFrom": [{source: {"name": "settings"}}]}
    with pytest.raises(PartialError, match='"settings" not found'):
        api.create(deployment(containers=[container]))
    kind = "ConfigMap" if source == "configMapRef" else "Secret"
    api.create(thing(kind, "settings"))
    api.create(deployment("later", containers=[container]))


def test_a_workload_waits_for_its_service_account(api: Api) -> None:
    with pytest.raises(PartialError, match='serviceaccount "gateway" not found'):
        api.create(deployment(serviceAccountName="gateway"))


def test_a_service_waits_for_pods_that_it_selects(api: Api) -> None:
    with pytest.raises(PartialError, match="does not target any ready Pods"):
        api.create(SERVICE)
    api.create(deployment())
    api.create(changed(SERVICE, "metadata.name", "two"))


def test_a_service_that_skips_the_wait_does_not(api: Api) -> None:
    api.create(changed(SERVICE, "metadata.annotations", {"pulumi.com/skipAwait": "true"}))


RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
SECURE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("allowPrivilegeEscalation", "allowPrivilegeEscalation"),
        ("capabilities", "unrestricted capabilities"),
        ("runAsNonRoot", "runAsNonRoot"),
        ("seccompProfile", "seccompProfile"),
    ],
)
def test_pods_of_a_restricted_namespace_are_refused(api: Api, field: str, word: str) -> None:
    api.create(thing("Namespace", "strict", metadata={"labels": RESTRICTED}))
    container = {"name": "web", "image": "web:1", "securityContext": SECURE}
    good = changed(deployment(containers=[container]), "metadata.namespace", "strict")
    api.create(good)
    bad = changed(good, f"{CONTAINER}.securityContext.{field}", None)
    with pytest.raises(PartialError, match=f'violates PodSecurity "restricted": {word}'):
        api.create(changed(bad, "metadata.name", "bad"))


def test_nothing_runs_without_nodes(eks: Api) -> None:
    with pytest.raises(PartialError, match="no nodes available"):
        eks.create(deployment())
    add_nodes(eks)
    eks.create(deployment("later"))


def test_taints_labels_and_room_decide(eks: Api) -> None:
    taint = {"key": "CriticalAddonsOnly", "value": "true", "effect": "NO_SCHEDULE"}
    add_nodes(eks, labels={"terrace.dev/nodes": "core"}, taints=[taint])
    with pytest.raises(PartialError, match=r"untolerated taint \{CriticalAddonsOnly: true\}"):
        eks.create(deployment("no-toleration"))
    tolerations = [{"key": "CriticalAddonsOnly", "operator": "Exists"}]
    wanted = {"terrace.dev/nodes": "sandbox"}
    with pytest.raises(PartialError, match="node affinity/selector"):
        eks.create(deployment("elsewhere", tolerations=tolerations, nodeSelector=wanted))
    container = {"name": "web", "image": "w", "resources": {"requests": {"cpu": "2"}}}
    fits = {"tolerations": tolerations, "containers": [container]}
    with pytest.raises(PartialError, match="0/2 nodes are available: 2 Insufficient cpu"):
        eks.create(deployment("too-many", replicas=3, **fits))
    for item in eks.cluster.items():
        if item.type.endswith(":Deployment"):
            eks.delete(item)
    eks.create(deployment("right", replicas=2, **fits))


def test_an_image_needs_its_repository(eks: Api) -> None:
    add_nodes(eks)
    url = "123456789012.dkr.ecr.us-east-1.amazonaws.com/gateway"
    container = {"name": "web", "image": f"{url}:1"}
    with pytest.raises(PartialError, match="ImagePullBackOff"):
        eks.create(deployment("early", containers=[container]))
    add(eks.inventory, "aws:ecr/repository:Repository", "gateway", {"repositoryUrl": url})
    eks.create(deployment("later", containers=[container]))


@pytest.mark.parametrize(
    ("address", "reason"), [("1.2.3.4", None), ("8.8.8.8", "8.8.8.8 is not in 1.2.3.0/24")]
)
def test_the_public_endpoint_answers_to_named_ranges(
    eks: Api, monkeypatch: pytest.MonkeyPatch, address: str, reason: str | None
) -> None:
    monkeypatch.setenv("SIMULATED_CLOUD_ADDRESS", address)
    assert (eks.cluster.unreachable() is None) == (reason is None)
    assert reason is None or reason in str(eks.cluster.unreachable())


HTTPS = {"securityGroupId": "sg-1", "ipProtocol": "tcp", "fromPort": 443, "toPort": 443}


@pytest.mark.parametrize(
    ("rule", "answers"),
    [
        ({**HTTPS, "cidrIpv4": "10.0.7.0/24"}, True),
        ({**HTTPS, "cidrIpv4": "10.0.7.0/24", "securityGroupId": "sg-own"}, True),
        ({"securityGroupId": "sg-1", "ipProtocol": "-1", "cidrIpv4": "10.0.0.0/16"}, True),
        ({**HTTPS, "cidrIpv4": "10.0.8.0/24"}, False),
        ({**HTTPS, "cidrIpv4": "10.0.7.0/24", "securityGroupId": "sg-2"}, False),
        ({**HTTPS, "cidrIpv4": "10.0.7.0/24", "fromPort": 80, "toPort": 80}, False),
        ({**HTTPS, "cidrIpv4": "10.0.7.0/24", "ipProtocol": "udp"}, False),
        ({**HTTPS, "referencedSecurityGroupId": "sg-1"}, False),
        (None, False),
    ],
)
def test_the_private_endpoint_answers_to_what_its_security_groups_let_in(
    eks: Api, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any] | None, answers: bool
) -> None:
    if rule is not None:
        add(eks.inventory, "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", "r", rule)
    monkeypatch.setenv("SIMULATED_CLOUD_ADDRESS", "10.0.7.7")
    reason = eks.cluster.unreachable()
    assert (reason is None) == answers
    assert answers or "no security group of the endpoint lets in 10.0.7.7" in str(reason)


def test_a_cluster_that_is_gone_is_unreachable(eks: Api) -> None:
    assert eks.cluster.unreachable() is None
    assert eks.cluster.eks is not None
    eks.inventory.remove(eks.cluster.eks)
    assert "no such host" in str(eks.cluster.unreachable())


def test_a_job_does_what_the_plug_in_says(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plug_in = tmp_path / "jobs.py"
    made = thing("Secret", "born", stringData={"key": "x"})
    plug_in.write_text(
        f"import json\ndef completed(job, cluster, put):\n"
        f"    if job['metadata']['name'] == 'bad':\n        return 'it fell'\n"
        f"    put(json.loads({json.dumps(json.dumps(made))}))\n"
    )
    monkeypatch.setenv("SIMULATED_CLOUD_JOBS", str(plug_in))
    pod = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}
    job: Callable[[str], Object] = lambda name: thing(  # noqa: E731
        "Job", name, spec={"template": {"spec": pod}}
    )
    with pytest.raises(PartialError, match="BackoffLimitExceeded: it fell"):
        api.create(job("bad"))
    api.create(job("good"))
    container = {"name": "web", "image": "w", "envFrom": [{"secretRef": {"name": "born"}}]}
    api.create(deployment(containers=[container]))
