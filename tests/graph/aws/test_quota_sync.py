"""QuotaSync: two replicas that may read quotas, reach the admin API, and hold one key."""

import json
import typing
from typing import Any

import pulumi
import pytest

import terrace_components as components

from .cloud import ACCOUNT
from .contract import check_component
from .iam_lint import problems

NEEDED: dict[str, Any] = {
    "namespace": "terrace-gateway",
    "image": "quota-sync:1",
    "resources": {"cpu": "20m", "memory": "96Mi", "memory_limit": "256Mi"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "every": {
        **NEEDED,
        "cluster_name": "a-cluster",
        "provider_credentials": {"AWS_REGION_TOKEN": "region-token"},
        "provider_secret": "other-credentials",
        "gateway_secret": "other-secrets",
        "every_seconds": 600,
        "stale_after_seconds": 7200,
        "stale_percent": 50,
        "replicas": 1,
        "scheduling": {
            "node_selector": {"role": "core"},
            "tolerations": [{"key": "core", "operator": "Exists"}],
        },
        "extra_egress": [{"cidr": "10.9.0.0/16", "port": 443}],
        "metrics_reader": {"namespace": "watch", "pod": "scraper", "port": 9090},
        "tags": {"team": "platform"},
    },
    "keys": {
        **NEEDED,
        "provider_credentials": {
            "AWS_ACCESS_KEY_ID": "aws-id",
            "AWS_SECRET_ACCESS_KEY": "aws-secret",
        },
    },
}


def make(**changes: Any) -> Any:
    args = {**NEEDED, **changes}
    return lambda: components.QuotaSync("it", typing.cast(Any, args))


def test_the_component(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "QuotaSync", VARIANTS)


def test_its_role_may_read_and_nothing_else(render: Any) -> None:
    graph = render(make(cluster_name="a-cluster"))
    [policy] = graph.of("RolePolicy")
    lists, profiles = json.loads(policy.inputs["policy"])["Statement"]
    assert {lists["Effect"], profiles["Effect"]} == {"Allow"}
    assert profiles["Resource"] == [f"arn:aws:bedrock:*:{ACCOUNT}:application-inference-profile/*"]
    assert sorted([*lists["Action"], *profiles["Action"]]) == [
        "bedrock:GetFoundationModelAvailability",
        "bedrock:GetInferenceProfile",
        "bedrock:ListFoundationModels",
        "bedrock:ListInferenceProfiles",
        "servicequotas:ListAWSDefaultServiceQuotas",
        "servicequotas:ListServiceQuotas",
    ]
    assert problems(policy.inputs["policy"]) == []


def test_without_a_cluster_there_is_no_identity(render: Any) -> None:
    graph = render(make())
    assert not graph.of("Role")
    assert not graph.of("PodIdentityAssociation")
    egress = json.dumps([r.inputs["spec"]["egress"] for r in graph.of("NetworkPolicy")
                         if "egress" in r.inputs["spec"]])  # fmt: skip
    assert "169.254.170.23" not in egress


def test_only_the_admin_key_is_mounted(render: Any) -> None:
    deployment = render(make()).one("Deployment")
    [volume] = [v for v in deployment.pod["volumes"] if "secret" in v]
    assert volume["secret"]["secretName"] == "gateway-secrets"
    assert volume["secret"]["items"] == [{"key": "admin-key", "path": "admin-key"}]
    [container] = deployment.pod["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert (
        environment["TERRACE_QUOTA_SYNC_ADMIN_URL"] == "http://gateway-admin.terrace-gateway:8081"
    )
    assert environment["TERRACE_QUOTA_SYNC_STALE_AFTER_SECONDS"] == "10800"
    assert deployment.inputs["spec"]["replicas"] == 2
    assert deployment.pod["automountServiceAccountToken"] is False


def test_the_admin_api_opens_to_it_alone(render: Any) -> None:
    graph = render(make())
    [opened] = [
        r.inputs["spec"]
        for r in graph.of("NetworkPolicy")
        if r.inputs["metadata"]["name"] == "gateway-admin-quota-sync"
    ]
    assert opened["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "gateway"}}
    assert opened["policyTypes"] == ["Ingress"]
    [rule] = opened["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8081}]
    [peer] = rule["from"]
    assert peer["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "quota-sync"}}


@pytest.mark.parametrize(
    ("key", "value"),
    [("replicas", 3), ("stale_percent", 101), ("every_seconds", 1), ("stale_after_seconds", 0)],
)
def test_impossible_numbers_are_refused_by_name(render: Any, key: str, value: int) -> None:
    with pytest.raises(pulumi.InputPropertyError) as raised:
        render(make(**{key: value}))
    assert raised.value.property_path == key
