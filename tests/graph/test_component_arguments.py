"""Every public argument of every component: it is taken, it acts, and nonsense is refused."""

import copy
from collections.abc import Callable
from typing import Any

import pulumi
import pytest

import terrace_components as components

IMAGE = "registry.example.com/thing:1.0"
RESOURCES = {"cpu": "100m", "memory": "64Mi", "memory_limit": "128Mi"}
ON_NODE = {"size": "1Gi", "node": "node-1", "path": "/srv/data"}
BY_CLASS = {"size": "1Gi", "storage_class": "fast"}
SCHEDULING = {
    "node_selector": {"terrace.dev/class": "core"},
    "tolerations": [{"key": "core", "operator": "Exists"}],
}
API = {"cidr": "192.0.2.1/32", "port": 6443}
PEER = {"namespace": "somewhere", "pod": "someone", "port": 5432}
SECRETS = [{"namespace": "a-namespace", "name": "a-secret", "data": {"key": {"random_hex": 8}}}]
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
GOVERNANCE = """
version: 1
price_version: "1"
defaults: {hard_stream_limit_seconds: 120}
providers:
  - {name: here, kind: openai, api_base: "http://model.elsewhere:8000/v1"}
  - {name: cloud, kind: bedrock, region: eu-west-1}
models:
  - name: one
    provider: here
    upstream_model: one
    context_tokens: 1000
    max_output_tokens: 100
    price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 2}
  - name: two
    provider: cloud
    upstream_model: amazon.two-v1:0
    context_tokens: 1000
    max_output_tokens: 100
    price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 2}
"""

# All arguments of each component, none at its default.
EVERY: dict[str, dict[str, Any]] = {
    "SecureNamespace": {
        "name": "a-name",
        "layer": "a-layer",
        "pod_security": "baseline",
        "readiness_gates": True,
    },
    "PersistentVolume": {"namespace": "a-namespace", "claim": "a-claim", "storage": ON_NODE},
    "SecretBootstrap": {
        "namespace": "a-namespace",
        "image": IMAGE,
        "secrets": SECRETS,
        "kubernetes_api": API,
    },
    "Postgres": {
        "namespace": "a-namespace",
        "image": IMAGE,
        "storage": BY_CLASS,
        "resources": RESOURCES,
        "clients": [PEER],
        "credentials_secret": "other-credentials",
        "scheduling": SCHEDULING,
    },
    "AdmissionPolicies": {
        "policies": [
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": "a-rule"},
                "spec": {
                    "failurePolicy": "Fail",
                    "matchConstraints": {
                        "resourceRules": [
                            {
                                "apiGroups": [""],
                                "apiVersions": ["v1"],
                                "operations": ["CREATE", "UPDATE"],
                                "resources": ["pods"],
                            }
                        ]
                    },
                    "validations": [{"expression": "true", "message": "never"}],
                },
            },
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": "a-rule"},
                "spec": {"policyName": "a-rule", "validationActions": ["Deny"]},
            },
        ]
    },
    "DatabaseRole": {
        "namespace": "a-namespace",
        "image": IMAGE,
        "host": "db.example.com",
        "database_address": {"cidr": "192.0.2.64/26", "port": 5432},
        "admin_secret": "an-admin",
        "gateway_secret": "other-credentials",
        "database_ca": CERTIFICATE,
        "scheduling": SCHEDULING,
    },
    "FoundationLocal": {
        "namespace": "a-namespace",
        "namespaces": [
            {
                "name": "a-namespace",
                "layer": "a-layer",
                "pod_security": "baseline",
                "readiness_gates": True,
            }
        ],
        "secret_bootstrap_image": IMAGE,
        "secrets": SECRETS,
        "kubernetes_api": API,
        "postgres_image": IMAGE,
        "postgres_storage": ON_NODE,
        "postgres_resources": RESOURCES,
        "postgres_clients": [PEER],
        "scheduling": SCHEDULING,
    },
    "GovernanceGateway": {
        "namespace": "a-namespace",
        "guard_image": IMAGE,
        "translator_image": "registry.example.com/translator@sha256:" + "0" * 64,
        "governance": GOVERNANCE,
        "guard_resources": RESOURCES,
        "translator_resources": {"cpu": "1", "memory": "4Gi", "memory_limit": "5Gi"},
        "database": PEER,
        "gateway_secret": "other-gateway",
        "ledger_secret": "other-ledger",
        "guard_settings": {"anchor_location": "s3://a-bucket/anchors"},
        "spool": {"size": "3Gi", "node": "node-1", "path": "/srv/spools"},
        "provider_secret": "other-providers",
        "provider_credentials": {"SOME_KEY": "some-key"},
        "replicas": 3,
        "scheduling": SCHEDULING,
        "public_node_port": 31000,
        "admin_node_port": 31001,
        "metrics_reader": {"namespace": "monitoring", "pod": "scraper", "port": 9090},
        "extra_egress": [{"cidr": "192.0.2.0/24", "port": 443}],
        "otlp_endpoint": "http://collector.monitoring:4318",
    },
    "ModelSimulator": {
        "namespace": "a-namespace",
        "image": IMAGE,
        "storage": BY_CLASS,
        "resources": RESOURCES,
        "credentials_secret": "other-credentials",
        "clients": [PEER],
        "node_port": 31002,
        "scheduling": SCHEDULING,
    },
    "Observability": {
        "namespace": "a-namespace",
        "image": IMAGE,
        "resources": RESOURCES,
        "targets": [PEER],
        "retention_hours": 5,
        "scrape_interval_seconds": 7,
        "node_port": 31003,
        "scheduling": SCHEDULING,
    },
}
NAMES = sorted(EVERY)
POLICY, BINDING = EVERY["AdmissionPolicies"]["policies"]
BARE = {key: value for key, value in POLICY.items() if key != "spec"}
# Arguments that stand in for others of EVERY, which they exclude.
INSTEAD: dict[str, dict[str, Any]] = {
    "GovernanceGateway": {
        "database": None,
        "database_address": {"cidr": "192.0.2.64/26", "port": 5432},
        "database_ca": CERTIFICATE,
        "replicas": None,
        "spool": {"storage_class": "fast", "access_mode": "ReadWriteOncePod"},
        "autoscaling": {"min_replicas": 3, "max_replicas": 9, "cpu_percent": 55},
        "zone_spread": True,
        "database_max_connections": 500,
        "keep_alive_seconds": 4100,
        "drain_delay_seconds": 30,
        "pod_identity": True,
    },
    "SecretBootstrap": {
        "secrets": [
            {
                "namespace": "a-namespace",
                "name": "from-aws",
                "data": {
                    "key": {
                        "secrets_manager": {
                            "arn": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:n-AbCdEf",
                            "json_key": "k",
                        }
                    }
                },
            },
            {"namespace": "theirs", "name": "own", "data": {"key": {"existing": True}}},
        ],
        "extra_egress": [{"cidr": "10.20.0.0/16", "port": 443}],
        "scheduling": SCHEDULING,
    },
    "DatabaseRole": {
        "admin_secret": None,
        "admin_secret_arn": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf",
        "secret_bootstrap_image": IMAGE,
        "extra_egress": [{"cidr": "10.20.0.0/16", "port": 443}],
    },
}


def make(name: str, /, **changes: Any) -> Callable[[], None]:
    args = {**copy.deepcopy(EVERY[name]), **changes}
    args = {key: value for key, value in args.items() if value is not None}
    return lambda: getattr(components, name)("it", args) and None


@pytest.mark.parametrize("name", NAMES)
def test_no_argument_is_left_out_here(name: str) -> None:
    here = {*EVERY[name], *INSTEAD.get(name, {})}
    assert here == set(getattr(components, f"{name}Args").__annotations__)


def test_no_component_is_left_out_here() -> None:
    """Those of AWS are in tests/graph/aws, one module each."""
    of_aws = [c for c in components.COMPONENTS if ".aws." in c.__module__]
    assert sorted(c.__name__ for c in {*components.COMPONENTS} - {*of_aws}) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_with_every_argument(render: Any, snapshot: Any, name: str) -> None:
    snapshot(f"component-{name}", render(make(name)).rows())


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_the_graph_with_the_other_arguments(render: Any, snapshot: Any, name: str) -> None:
    known = render(make(name, **INSTEAD[name]))
    snapshot(f"component-{name}-instead", known.rows())
    unknown = render(make(name, **INSTEAD[name]), preview=True)
    assert {(r.type, r.name) for r in unknown.resources} == {
        (r.type, r.name) for r in known.resources
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_preview_registers_all_of_it(render: Any, name: str) -> None:
    known, unknown = render(make(name)), render(make(name), preview=True)
    assert sorted((r.type, r.name) for r in unknown.resources) == sorted(
        (r.type, r.name) for r in known.resources
    )


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_others_are_taken(render: Any, name: str) -> None:
    """Namespaces and images may come from another resource."""
    keys = [
        key
        for key in EVERY[name]
        if key.endswith("image") or (key == "namespace" and name != "FoundationLocal")
    ]
    plain = render(make(name)).rows()

    def program() -> None:
        make(name, **{key: pulumi.Output.from_input(EVERY[name][key]) for key in keys})()

    assert render(program).rows() == plain


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_argument_is_refused_and_the_valid_ones_are_listed(
    render: Any, name: str
) -> None:
    known = next(iter(EVERY[name]))
    with pytest.raises(pulumi.InputPropertyError) as raised:
        render(make(name, **{f"{known}_": "x"}))
    assert raised.value.property_path == f"{known}_"
    assert f"did you mean '{known}'" in raised.value.reason
    assert all(key in raised.value.reason for key in EVERY[name])


@pytest.mark.parametrize("name", NAMES)
def test_required_arguments_are_asked_for(render: Any, name: str) -> None:
    for key in getattr(components, f"{name}Args").__required_keys__:
        with pytest.raises(pulumi.InputPropertyError) as raised:
            render(make(name, **{key: None}))
        assert (raised.value.property_path, raised.value.reason) == (key, "is required")


@pytest.mark.parametrize(
    ("name", "changes", "path", "reason"),
    [
        ("SecureNamespace", {"name": "Not A Name"}, "name", "pattern"),
        ("SecureNamespace", {"pod_security": "privileged"}, "pod_security", "'restricted'"),
        ("PersistentVolume", {"storage": {"size": "1Gi"}}, "storage", "storage_class"),
        ("PersistentVolume", {"storage": {**ON_NODE, **BY_CLASS}}, "storage", "node and path"),
        ("PersistentVolume", {"storage": {"size": "1Gi", "path": "/x"}}, "storage", "node and"),
        ("PersistentVolume", {"storage": {**ON_NODE, "path": "x"}}, "storage.path", "pattern"),
        ("PersistentVolume", {"storage": {**ON_NODE, "size": "big"}}, "storage.size", "pattern"),
        ("PersistentVolume", {"storage": {**ON_NODE, "nod": "x"}}, "storage.nod", "'node'"),
        ("PersistentVolume", {"namespace": ""}, "namespace", "not empty"),
        ("SecretBootstrap", {"secrets": []}, "secrets", "at least 1"),
        ("SecretBootstrap", {"image": "thing"}, "image", "tag or digest"),
        ("SecretBootstrap", {"image": "registry:5000/thing"}, "image", "tag or digest"),
        ("SecretBootstrap", {"image": "thing:latest"}, "image", "not latest"),
        ("SecretBootstrap", {"image": 3}, "image", "image reference"),
        (
            "SecretBootstrap",
            {"kubernetes_api": {"cidr": "x", "port": 1}},
            "kubernetes_api.cidr",
            "",
        ),
        (
            "SecretBootstrap",
            {
                "secrets": [
                    {
                        "namespace": "a",
                        "name": "b",
                        "data": {"k": {"secrets_manager": {"arn": "arn:aws:s3:::x"}}},
                    }
                ]
            },
            "secrets.0.data",
            "k: secrets_manager must be arn",
        ),
        ("AdmissionPolicies", {"policies": []}, "policies", "at least 1"),
        ("AdmissionPolicies", {"policies": [{"kind": "Pod"}]}, "policies", "manifest 0 must be a"),
        ("AdmissionPolicies", {"policies": [BARE]}, "policies", "metadata.name and spec"),
        ("AdmissionPolicies", {"policies": [POLICY, POLICY]}, "policies", "a-rule is there twice"),
        (
            "AdmissionPolicies",
            {"policies": [BINDING]},
            "policies",
            "names no policy here: 'a-rule'",
        ),
        ("DatabaseRole", {"admin_secret": None}, "admin_secret", "exactly one of them"),
        (
            "DatabaseRole",
            {"admin_secret_arn": "arn:x", "secret_bootstrap_image": IMAGE},
            "admin_secret",
            "exactly one of them",
        ),
        (
            "DatabaseRole",
            {"admin_secret": None, "admin_secret_arn": "arn:x"},
            "secret_bootstrap_image",
            "is needed with admin_secret_arn",
        ),
        ("DatabaseRole", {"database_ca": "ca.pem"}, "database_ca", "BEGIN CERTIFICATE"),
        ("DatabaseRole", {"host": ""}, "host", "not empty"),
        ("Postgres", {"clients": [{**PEER, "port": 0}]}, "clients.0.port", "greater than"),
        ("Postgres", {"resources": {**RESOURCES, "cpu": "much"}}, "resources.cpu", "pattern"),
        ("Postgres", {"scheduling": {"selector": {}}}, "scheduling.selector", "node_selector"),
        ("FoundationLocal", {"namespace": "other"}, "namespace", "one of namespaces: a-namespace"),
        ("GovernanceGateway", {"replicas": 0}, "replicas", "greater than"),
        ("GovernanceGateway", {"replicas": 2.5}, "replicas", "2.5"),
        ("GovernanceGateway", {"public_node_port": 8080}, "public_node_port", "30000"),
        ("GovernanceGateway", {"otlp_endpoint": "collector:4318"}, "otlp_endpoint", "pattern"),
        ("GovernanceGateway", {"governance": "version: 1"}, "governance", "governance:1"),
        ("GovernanceGateway", {"governance": "modles: []"}, "governance", "valid keys here"),
        ("GovernanceGateway", {"database": None}, "database", "or database_address"),
        ("GovernanceGateway", {"database_address": API}, "database", "exactly one"),
        (
            "GovernanceGateway",
            {"autoscaling": {"min_replicas": 2, "max_replicas": 3}},
            "autoscaling",
            "give replicas (a fixed number) or autoscaling, not both",
        ),
        (
            "GovernanceGateway",
            {"replicas": None, "autoscaling": {"min_replicas": 3, "max_replicas": 2}},
            "autoscaling",
            "max_replicas must not be below",
        ),
        (
            "GovernanceGateway",
            {"replicas": None, "autoscaling": {"min_replicas": 0, "max_replicas": 2}},
            "autoscaling.min_replicas",
            "greater than",
        ),
        (
            "GovernanceGateway",
            {"autoscaling": {"min_replicas": 1, "max_replicas": 2, "cpu_percent": 100}},
            "autoscaling.cpu_percent",
            "95",
        ),
        (
            "GovernanceGateway",
            {"autoscaling": {"min_replicas": 1, "max_replicas": 2, "cpu": 1}},
            "autoscaling.cpu",
            "Valid here: cpu_percent, max_replicas, min_replicas",
        ),
        ("GovernanceGateway", {"keep_alive_seconds": 0}, "keep_alive_seconds", "greater than"),
        ("GovernanceGateway", {"drain_delay_seconds": 301}, "drain_delay_seconds", "300"),
        (
            "GovernanceGateway",
            {"database_max_connections": 0},
            "database_max_connections",
            "greater than",
        ),
        (
            "GovernanceGateway",
            {"guard_settings": {"admin_key_file": "/etc/passwd"}},
            "guard_settings.admin_key_file.[key]",
            "anchor_location",
        ),
        ("GovernanceGateway", {"spool": {"node": "n"}}, "spool", "belong together"),
        (
            "GovernanceGateway",
            {"spool": {"node": "n", "path": "/p", "storage_class": "c"}},
            "spool",
            "not both",
        ),
        (
            "GovernanceGateway",
            {"spool": {"node": "n", "path": "/p", "access_mode": "ReadWriteOncePod"}},
            "spool",
            "directory of a node",
        ),
        ("GovernanceGateway", {"spool": {"size": "big"}}, "spool.size", "match"),
        ("GovernanceGateway", {"database_ca": "ca.pem"}, "database_ca", "BEGIN CERTIFICATE"),
        ("ModelSimulator", {"node_port": 99999}, "node_port", "32767"),
        ("Observability", {"targets": []}, "targets", "at least 1"),
        (
            "Observability",
            {"targets": [{"namespace": "x", "port": 1}]},
            "targets.0.pod",
            "is req",
        ),
        ("Observability", {"retention_hours": 0}, "retention_hours", "greater than"),
    ],
)
def test_nonsense_is_refused_by_name(
    render: Any, name: str, changes: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(pulumi.InputPropertyError) as raised:
        render(make(name, **changes))
    assert raised.value.property_path == path
    assert reason in raised.value.reason


def test_numbers_arrive_as_floats_from_other_languages(render: Any) -> None:
    graph = render(make("GovernanceGateway", replicas=4.0, public_node_port=31000.0))
    assert graph.one("StatefulSet").inputs["spec"]["replicas"] == 4


def test_a_claim_of_a_class_has_no_volume_of_its_own(render: Any) -> None:
    graph = render(make("PersistentVolume", storage=BY_CLASS))
    assert not [r for r in graph.of("PersistentVolume") if r.custom]
    assert graph.one("PersistentVolumeClaim").inputs["spec"]["storageClassName"] == "fast"


def test_a_volume_on_a_node_outlives_its_claim(render: Any) -> None:
    graph = render(make("PersistentVolume"))
    [volume] = [r.inputs["spec"] for r in graph.of("PersistentVolume") if r.custom]
    assert volume["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["hostPath"] == {"path": "/srv/data", "type": "DirectoryOrCreate"}
    assert volume["claimRef"] == {"namespace": "a-namespace", "name": "a-claim"}
    claim = graph.one("PersistentVolumeClaim").inputs["spec"]
    assert (claim["storageClassName"], claim["volumeName"]) == ("", "it")
